"""A trace as the market of a run: how many nodes it may have now, and which of them go.

    the launcher's clock  ->  trace time  ->  seats filled and lost  ->  nodes wanted, preemptions

Trace time begins when training begins. Until then the run may have the nodes that the trace begins
with. Rule: everything follows from the trace, its terms, the decision log and the books, so that a
later launcher continues where the earlier one was. An instance holds its seat until the trace loses
that seat. Then it is preempted, even if the seat was filled again meanwhile.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from bamboo.billing.money import Rented
from bamboo.core.liveness.patience import parked
from bamboo.core.state import Phase, State
from bamboo.runs.books import Seated
from bamboo.runs.progress import TraceNow
from bamboo.study.played_trace import HOUR_S, Replayed, TraceTerms


class TraceClock:
    """Trace time as a function of the decisions. It begins with training, stands still at the end,
    and jumps ahead by the charge of a restart when one begins. Waiting for nodes is not a restart,
    and a loss during a restart belongs to it."""

    def __init__(self, terms: TraceTerms) -> None:
        self._terms = terms
        self._trace_s = terms.begin_s
        self._at_s: float | None = None
        self._rate = 0.0
        self._restarting = False

    def decided(self, state: State, at_s: float) -> None:
        """Take in a decision at `at_s`, in Unix seconds, that led to this state."""
        if self._at_s is None and state.phase in (Phase.FORMING, Phase.FINISHED):
            return
        self._trace_s = self.trace_s(at_s)
        self._at_s = at_s
        restart_s = self._terms.restart_s
        if restart_s is not None and state.reconfiguration is not None and not self._restarting:
            self._trace_s += restart_s
        self._restarting = state.reconfiguration is not None
        if state.phase is Phase.FINISHED:
            self._rate = 0.0
        elif restart_s is not None and self._restarting and not parked(state):
            self._rate = 1.0
        else:
            self._rate = self._terms.time_scale

    def trace_s(self, now_s: float) -> float:
        """Seconds of the trace at `now_s`."""
        passed_s = 0.0 if self._at_s is None else max(0.0, now_s - self._at_s)
        return self._trace_s + passed_s * self._rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The trace takes this instance, which holds a seat."""

    seat: int
    instance: str
    trace_s: float
    again: bool
    """It was ordered before, and the instance still exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What the trace brings up to one moment."""

    seated: tuple[Seated, ...]
    losses: tuple[Loss, ...]
    nodes: int
    """How many to keep from now on, without those that are being lost."""
    changed: bool
    """Whether a seat was filled or lost since the turn before."""
    ended: bool
    """Whether the trace has just ended."""


class Market:
    """Plays a trace for one launcher. `seated` and `ordered` are what earlier launchers booked."""

    def __init__(
        self,
        played: Replayed,
        *,
        seated: Sequence[Seated] = (),
        ordered: Collection[str] = (),
    ) -> None:
        self._played = played
        self._clock = TraceClock(played.terms)
        self._left = list(played.events[::-1])
        self._filled: set[int] = set()
        self._lost: Counter[int] = Counter()
        self._seat_of = {one.instance: one for one in seated}
        self._ordered = set(ordered)
        self._ended = False
        self._advance(played.terms.begin_s)

    def decided(self, state: State, at_s: float) -> None:
        """Take in a decision. Called for every decision, in order."""
        self._clock.decided(state, at_s)

    def turn(self, rented: Sequence[Rented], *, now_s: float) -> Turn:
        """Play on to `now_s`. `rented` is all instances that the run ever had, oldest first."""
        trace_s = self._clock.trace_s(now_s)
        changed = self._advance(trace_s)
        here = [one.instance for one in rented if one.ended_at_s is None]
        losses = tuple(self._losses(here, trace_s))
        seated = tuple(self._seats(here))
        ended = not self._ended and trace_s >= self._played.trace.length_s
        self._ended = self._ended or ended
        return Turn(
            seated=seated,
            losses=losses,
            nodes=len(self._filled),
            changed=changed,
            ended=ended,
        )

    def over(self, now_s: float) -> str:
        """A sentence once the trace was played as far as was asked for; "" before that."""
        terms = self._played.terms
        passed_s = self._clock.trace_s(now_s) - terms.begin_s
        if terms.hours is None or passed_s < terms.hours * HOUR_S:
            return ""
        return f"the {terms.hours:g} h of the trace that were asked for are over"

    def told(self, now_s: float) -> TraceNow:
        """Where the trace is now, for people."""
        terms = self._played.terms
        return TraceNow(
            name=terms.name,
            time_scale=terms.time_scale,
            restart_s=terms.restart_s,
            max_nodes=terms.max_nodes,
            nodes=len(self._filled),
            played_s=self._clock.trace_s(now_s) - terms.begin_s,
            length_s=self._played.trace.length_s - terms.begin_s,
            preemptions=len(self._ordered),
        )

    def _advance(self, until_s: float) -> bool:
        """Whether any seat was filled or lost by then."""
        left = len(self._left)
        while self._left and self._left[-1].at_s <= until_s:
            event = self._left.pop()
            self._filled.symmetric_difference_update({event.seat})
            self._lost[event.seat] += not event.filled
        return len(self._left) < left

    def _losses(self, here: Sequence[str], trace_s: float) -> Iterable[Loss]:
        for instance in here:
            held = self._seat_of.get(instance)
            if held is not None and held.lost_before < self._lost[held.seat]:
                again = instance in self._ordered
                self._ordered.add(instance)
                yield Loss(seat=held.seat, instance=instance, trace_s=trace_s, again=again)

    def _seats(self, here: Sequence[str]) -> Iterable[Seated]:
        """Seats for the instances without one, the oldest first."""
        held = [self._seat_of[i] for i in here if i in self._seat_of]
        taken = {one.seat for one in held if one.lost_before == self._lost[one.seat]}
        free = sorted(self._filled - taken)
        for instance in (i for i in here if i not in self._seat_of):
            if not free:
                return
            seat = free.pop(0)
            new = Seated(seat=seat, lost_before=self._lost[seat], instance=instance)
            self._seat_of[instance] = new
            yield new
