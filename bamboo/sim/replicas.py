"""Replicas in the making and slots that change hands, in a simulated run.

Rule: a copy is taken at a step boundary, sent behind the training, one at a time at each end, and
joins at a boundary; a slot moves at a boundary. What is not wanted any more by then is dropped.
"""

from collections.abc import Iterable
from functools import partial

from bamboo.core.events import ReplicaJoined, Yielded
from bamboo.core.state import Move, Transfer
from bamboo.ids import NodeId
from bamboo.sim.members import Run, layout_of, step_in_hand


class Replicas:
    """Of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._link_free_s: dict[NodeId, float] = {}
        self._bytes: dict[range, int] = {}

    def begin(self, transfers: Iterable[Transfer], moves: Iterable[Move]) -> None:
        """These were decided just now."""
        boundaries = self._run.world.boundaries
        for transfer in transfers:
            boundaries.when_next(partial(self._copy, transfer))
        for move in moves:
            boundaries.when_next(partial(self._yield, move))

    def _copy(self, transfer: Transfer) -> None:
        run = self._run
        if transfer not in run.state.transfers:
            return
        layers = layout_of(run.state, run.policy).layers_of(transfer.slot)
        ends = (transfer.source, transfer.receiver)
        zones = (run.state.roll.zones[node] for node in ends)
        size, rate = self._bytes_of(layers), run.workload.copy_bytes_per_s(*zones)
        free_s = max(run.world.kernel.now_s, *(self._link_free_s.get(node, 0.0) for node in ends))
        done_s = free_s + (size / rate if rate else 0.0)
        self._link_free_s |= dict.fromkeys(ends, done_s)
        joins = partial(self._join, transfer, size)
        run.world.kernel.at(done_s, lambda: run.world.boundaries.when_next(joins))

    def _bytes_of(self, layers: range) -> int:
        if layers not in self._bytes:
            self._bytes[layers] = self._run.workload.state_bytes(layers)
        return self._bytes[layers]

    def _join(self, transfer: Transfer, size: int) -> None:
        if transfer in self._run.state.transfers:
            self._run.say(
                ReplicaJoined(
                    node=transfer.source,
                    slot=transfer.slot,
                    receiver=transfer.receiver,
                    since=transfer.since,
                    step=step_in_hand(self._run),
                    bytes=size,
                )
            )

    def _yield(self, move: Move) -> None:
        if move in self._run.state.moves:
            step = step_in_hand(self._run)
            self._run.say(Yielded(node=move.source, slot=move.slot, since=move.since, step=step))
