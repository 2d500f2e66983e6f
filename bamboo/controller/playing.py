"""How many nodes a launcher keeps, turn by turn, by the trace or by the autoscaler; and the
preemptions that the trace or the job's own list orders from the cloud.

Rule: an order is written down before it is given, and is repeated until the instance is gone.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from bamboo.billing.ledger import Accounts
from bamboo.controller.autoscaling import Autoscaler, scale
from bamboo.controller.chaos import Chaos
from bamboo.controller.market import Market, Turn
from bamboo.controller.ports import Ports
from bamboo.ids import InstanceId
from bamboo.runs.books import PREEMPTION_ORDERED, SEAT_LOST, SEAT_TAKEN
from bamboo.runs.progress import Progress


def nodes_wanted(
    market: Market | None,
    autoscaler: Autoscaler | None,
    ports: Ports,
    progress: Progress,
    accounts: Accounts,
) -> tuple[int | None, bool]:
    """How many nodes to keep (None: as many as the job may have), and whether the fleet has to be
    reconciled now. Raises StoreUnavailable."""
    if autoscaler is not None:
        return scale(autoscaler, ports, progress, accounts), False
    if market is None:
        return None, False
    turn, nodes = play(market, ports, progress)
    return nodes, turn.changed


def play(market: Market, ports: Ports, progress: Progress) -> tuple[Turn, int]:
    """Play the trace on to now. Returns what that brought and how many nodes to keep."""

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
    # An instance that could not be taken yet counts. Otherwise the fleet would end another one as
    # surplus.
    here = {one.instance for one in ports.fleet.rented() if one.ended_at_s is None}
    return turn, turn.nodes + sum(loss.instance in here for loss in turn.losses)


def order_chaos(chaos: Chaos, ports: Ports, progress: Progress) -> None:
    """Order from the fleet the preemptions that are due, after writing down the listed ones."""
    now_s = ports.now()
    for one in chaos.due(progress.state, steps_finished=progress.step, now_s=now_s):
        if one.listed is not None:
            told = {"listed": one.listed, "instance": one.instance}
            ports.books.event(PREEMPTION_ORDERED, progress, at_s=ports.now(), data=told)
        ports.fleet.preempt(one.instance, notice_s=one.notice_s)
