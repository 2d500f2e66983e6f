"""New replicas, moves of slots, and prefetch, in a simulated run.

Rule: a copy is taken at a step boundary and sent behind the training, one at a time at each end; it
joins at a boundary. A slot moves at a boundary. What is no longer wanted by then is dropped.
"""

from collections.abc import Callable, Iterable
from functools import partial

from bamboo.core.events import Prepared, ReplicaJoined, Yielded
from bamboo.core.next_layout import feeds_under_way
from bamboo.core.rounds import answers
from bamboo.core.state import Move, Prefetch, Prefetches, Preparing, Transfer
from bamboo.ids import NodeId
from bamboo.sim.members import Run, layout_of, step_in_hand


class Replicas:
    """The replicas of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._link_free_s: dict[NodeId, float] = {}
        self._bytes: dict[range, int] = {}
        self._whole: set[Prefetch] = set()
        """Feeds that have arrived."""

    def begin(self, transfers: Iterable[Transfer], moves: Iterable[Move]) -> None:
        """Start the transfers and moves that were just decided."""
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
        joins = partial(self._join, transfer, self._bytes_of(layers))
        self._send(transfer, layers, joins)

    def _send(self, item: Transfer | Prefetch, layers: range, then: Callable[[], None]) -> None:
        """Send these layers once both ends are free; call `then` at the boundary after that."""
        run, ends = self._run, (item.source, item.receiver)
        zones = [run.state.roll.zones[node] for node in ends]
        size, rate = self._bytes_of(layers), run.workload.copy_bytes_per_s(*zones)
        free_s = max(run.world.kernel.now_s, *(self._link_free_s.get(node, 0.0) for node in ends))
        done_s = free_s + (size / rate if rate else 0.0)
        self._link_free_s |= dict.fromkeys(ends, done_s)
        if len({*zones}) > 1:
            run.world.sends(size)
        run.world.kernel.at(done_s, lambda: run.world.boundaries.when_next(then))

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

    def feed(self, known: Preparing | None, preparing: Preparing | None) -> None:
        """The prefetch for a new layout has changed."""
        feeds = Prefetches() if preparing is None else preparing.sent
        before = Prefetches() if known is None else known.sent
        if feeds is before:
            return
        self._whole = {feed for feed in self._whole if feeds.has(feed)}
        if new := [feed for feed in feeds if not before.has(feed)]:
            self._run.world.boundaries.when_next(partial(self._feed, new))
        if preparing is not None and feeds != before:
            waiting = sorted(answers(preparing.prepared).silent(preparing.receivers))
            self._run.world.kernel.after(0.0, partial(self._look_at, waiting))

    def _look_at(self, nodes: Iterable[NodeId]) -> None:
        for node in nodes:
            self._prepared(node)

    def _feed(self, new: Iterable[Prefetch]) -> None:
        under_way = feeds_under_way(self._run.state)
        for feed in filter(under_way.has, new):
            self._send(feed, feed.layers, partial(self._fed, feed))

    def _fed(self, feed: Prefetch) -> None:
        if feeds_under_way(self._run.state).has(feed):
            self._whole.add(feed)
            self._prepared(feed.receiver)

    def _prepared(self, node: NodeId) -> None:
        """A node that has received all of its prefetch reports it."""
        preparing = self._run.state.preparing
        mine = () if preparing is None else preparing.sent.of.get(node, ())
        if mine and self._whole.issuperset(mine):
            self._run.say(
                Prepared(
                    node=node,
                    since=max(feed.since for feed in mine),
                    bytes=sum(self._bytes_of(feed.layers) for feed in mine),
                    followed_bytes=0,
                )
            )

    def _yield(self, move: Move) -> None:
        if move in self._run.state.moves:
            step = step_in_hand(self._run)
            self._run.say(Yielded(node=move.source, slot=move.slot, since=move.since, step=step))
