"""One turn of a launcher that plays a trace: what the trace takes, the cloud takes.

Rule: written down first, then ordered; and ordered again until the instance is seen to be gone.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bamboo.ids import InstanceId
from cli.books import SEAT_LOST, SEAT_TAKEN
from cli.market import Market, Turn
from cli.ports import Ports
from cli.progress import Progress


def play(market: Market, ports: Ports, progress: Progress) -> tuple[Turn, int]:
    """Play on to now; what that brought, and how many nodes are to be kept."""

    def book(kind: str, data: Mapping[str, Any]) -> None:
        ports.books.event(kind, progress, at_s=ports.now(), data=data)

    turn = market.turn(ports.fleet.rented(), now_s=ports.now())
    for seated in turn.seated:
        book(SEAT_TAKEN, asdict(seated))
    for loss in turn.losses:
        if not loss.again:
            book(SEAT_LOST, asdict(loss))
        ports.fleet.preempt(InstanceId(loss.instance), notice_s=0.0, cause="trace")
    if turn.ended:
        ports.screen.note(f"the trace ends here: its {turn.nodes} nodes stay, and no more come")
    if not turn.losses:
        return turn, turn.nodes
    # One that could not be taken yet counts: the fleet would end another one as surplus.
    here = {one.instance for one in ports.fleet.rented() if one.ended_at_s is None}
    return turn, turn.nodes + sum(loss.instance in here for loss in turn.losses)
