"""Bugs planted in the decision core: each must be found by the swarm within 2,000 seeds.

    python -m tests.sim.swarm.planted            the seeds in which each is found

Rule: a bug is what somebody could have written: one condition, one line less, an older one taken
for a newer one. It lasts as long as its context does.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from bamboo.core import ending, failover, faults, machine, protect, reconfiguration
from bamboo.core.effects import GoOn, Promote, QuiesceAfter, StopAt
from bamboo.core.events import (
    Attested,
    CaughtUp,
    LayoutBuilt,
    NodeFinished,
    NodesReleased,
    StopRequested,
)
from bamboo.core.reconfiguration import find_base
from bamboo.core.rounds import Base
from bamboo.core.state import Policy, Report, State
from bamboo.core.transition import Transition, changed, stale
from testbed.swarm.run import Verdict, play_seed
from tests.sim.swarm.planted_outages import (
    judged_whatever_is_refused,
    patient_whatever_is_refused,
    refilled_under_the_same_generation,
)
from tests.sim.swarm.planted_stores import (
    a_failed_checkpoint_takes_another_along,
    a_writer_lost,
    kept_by_who_goes_first,
    nothing_kept,
    part_missing,
    part_of_another_layout,
)

WITHIN = 2_000
"""Seeds in which each is to be found."""

Bug = Callable[[], AbstractContextManager[Any]]


def shadow_not_cleared() -> AbstractContextManager[Any]:
    """After a loss the victim still stands as the shadow of what it shadowed."""
    real = failover.pass_on

    def pass_on(state: State, leaver: Any, **how: Any) -> Any:
        after, effects, words = real(state, leaver, **how)
        before, now = failover.assigned(state), failover.assigned(after)
        still = dict.fromkeys(before.shadowed_by(leaver), leaver)
        return replace(after, assignment=now.replace(owners={}, shadows=still)), effects, words

    return patch.object(failover, "pass_on", pass_on)


def caught_up_by_anybody() -> AbstractContextManager[Any]:
    """CaughtUp counts for its slot, whoever says it: one who is gone, or a successor before."""

    def catch_up(state: State, event: CaughtUp) -> Transition:
        done = next((f for f in state.failovers if f.slot == event.slot), None)
        if done is None:
            return stale(state, "no failover of it is under way")
        left = tuple(f for f in state.failovers if f is not done)
        return changed(replace(state, failovers=left), (), "caught up")

    return patch.object(machine, "catch_up", catch_up)


def generation_not_raised() -> AbstractContextManager[Any]:
    """A slot changes hands within one generation."""
    real = protect.yield_slot

    def yield_slot(state: State, event: Any, **how: Any) -> Transition:
        decided = real(state, event, **how)
        if decided.state is state:
            return decided
        return replace(decided, state=replace(decided.state, generation=state.generation))

    return patch.object(machine, "yield_slot", yield_slot)


def oldest_base() -> AbstractContextManager[Any]:
    """All go on from the oldest step that somebody has all of, not from the newest."""

    def oldest(state: State, policy: Policy) -> Base | None:
        found, last = find_base(state, policy), None
        while found is not None and not found.checkpoint and state.reconfiguration is not None:
            last = found
            fewer = tuple(
                replace(r, holdings=tuple(h for h in r.holdings if h.reach < last.step))
                for r in state.reconfiguration.reports
            )
            state = replace(state, reconfiguration=replace(state.reconfiguration, reports=fewer))
            found = find_base(state, policy)
        return found if last is None or found is not None else last

    return patch.object(reconfiguration, "find_base", oldest)


def gone_report_counts() -> AbstractContextManager[Any]:
    """What a node said that is gone by now still counts for the base and as a source."""
    real = reconfiguration.settle

    def gone_counts(before: State, decided: Transition, policy: Policy) -> Transition:
        state, known = decided.state, decided.state.reconfiguration
        if state is before or known is None or known.base is not None:
            return real(before, decided, policy)
        live = {node.id for node in state.live_nodes()}
        gone = [report for report in known.reports if report.node not in live]
        stays = next((report for report in known.reports if report.node in live), None)
        if stays is None or not gone:
            return real(before, decided, policy)
        more = tuple(h for report in gone for h in report.holdings)
        fat = Report(node=stays.node, holdings=(*stays.holdings, *more), norms=stays.norms)
        reports = tuple(fat if report is stays else report for report in known.reports)
        state = replace(state, reconfiguration=replace(known, reports=reports))
        return real(before, replace(decided, state=state), policy)

    return patch.object(machine, "settle", gone_counts)


def yields_to_nobody() -> AbstractContextManager[Any]:
    """A move goes on although its receiver shadows the slot no more."""
    return patch.object(protect, "_stands", lambda state, move: True)


def finished_before_caught_up() -> AbstractContextManager[Any]:
    """NodeFinished counts although the node has yet to catch up with what it took over."""
    real = ending.finish_node

    def finish(state: State, event: NodeFinished) -> Transition:
        given = replace(state, failovers=())
        decided = real(given, event)
        if decided.state is given:
            return stale(state, decided.reason)
        if decided.state.outcome is not None or not decided.state.finished:
            return decided
        return replace(decided, state=replace(decided.state, failovers=state.failovers))

    return patch.object(machine, "finish_node", finish)


def late_joiner_forgotten() -> AbstractContextManager[Any]:
    """A new layout does not wait for those who joined after all were asked to stop."""
    real = reconfiguration.note_built

    def built(state: State, event: LayoutBuilt) -> Transition:
        known, assignment = state.reconfiguration, state.assignment
        if known is None or assignment is None or known.since != event.since:
            return real(state, event)
        late = assignment.members() - set(known.asked) - {one.node for one in known.rebuilt}
        for node in sorted(late - {event.node}):
            state = real(state, LayoutBuilt(node=node, since=event.since, bytes=0)).state
        return real(state, event)

    return patch.object(machine, "note_built", built)


def standby_with_a_notice() -> AbstractContextManager[Any]:
    """A node that the cloud is about to take gets slots and replicas like any other."""
    real = protect.lacking

    def lacking(state: State, assignment: Any, **how: Any) -> Any:
        plain = tuple(replace(node, notice_deadline_s=None) for node in state.nodes)
        return real(replace(state, nodes=plain), assignment, **how)

    return patch.object(protect, "lacking", lacking)


def stop_at_the_earliest() -> AbstractContextManager[Any]:
    """A stop is agreed for the step that the slowest has begun."""
    real = ending.settle_stop

    def earliest(state: State) -> Any:
        if state.stop_ready:
            least = min(step for _, step in state.stop_ready)
            answers = tuple((node, least) for node, _ in state.stop_ready)
            after, effects, words = real(replace(state, stop_ready=answers))
            return replace(after, stop_ready=state.stop_ready), effects, words
        return real(state)

    return patch.multiple(ending, settle_stop=earliest)


def boundary_of_the_slowest() -> AbstractContextManager[Any]:
    """All stop after the step that the slowest has begun."""
    real = reconfiguration._fix_boundary

    def fix(state: State, known: Any) -> Any:
        after, orders, words = real(state, known)
        if orders and known.ready and after.reconfiguration is not None:
            least = min(step for _, step in known.ready if step >= 0) if known.ready else 0
            orders = tuple(
                replace(o, step=least) if isinstance(o, QuiesceAfter) else o for o in orders
            )
            after = replace(after, reconfiguration=replace(after.reconfiguration, boundary=least))
        return after, orders, words

    return patch.object(reconfiguration, "_fix_boundary", fix)


def nobody_promoted() -> AbstractContextManager[Any]:
    """The successor of a slot is not told."""
    real = failover.pass_on

    def pass_on(*given: Any, **how: Any) -> Any:
        after, effects, words = real(*given, **how)
        return after, tuple(e for e in effects if not isinstance(e, Promote)), words

    return patch.object(failover, "pass_on", pass_on)


def no_second_round() -> AbstractContextManager[Any]:
    """A loss after the layout is decided begins no new round."""
    real = reconfiguration.lose_while_reconfiguring

    def lose(state: State, node: Any, effects: Any, words: str, policy: Policy) -> Transition:
        if state.reconfiguration is not None and state.reconfiguration.base is not None:
            return changed(state, effects, words)
        return real(state, node, effects, words, policy)

    return patch.object(failover, "lose_while_reconfiguring", lose)


def forgotten_step() -> AbstractContextManager[Any]:
    """All are told to go on one step later than what they have."""
    real = reconfiguration._go_on

    def go_on(state: State, base: int) -> Any:
        after, effects = real(state, base)
        late = (replace(e, step=base + 1) if isinstance(e, GoOn) else e for e in effects)
        return after, tuple(late)

    return patch.object(reconfiguration, "_go_on", go_on)


def stop_forgotten() -> AbstractContextManager[Any]:
    """A stop that is asked for while a failover is under way is not noted."""
    real = ending.request_stop

    def request_stop(state: State, event: StopRequested) -> Transition:
        return stale(state, "a failover comes first") if state.failovers else real(state, event)

    return patch.object(machine, "request_stop", request_stop)


def stops_a_step_late() -> AbstractContextManager[Any]:
    """A stop is agreed for the step after the one that is begun: that may be beyond the budget."""
    real = ending.settle_stop

    def late(state: State) -> Any:
        after, effects, words = real(state)
        if after.stop_at_step is None or not effects:
            return after, effects, words
        step = after.stop_at_step + 1
        orders = tuple(replace(e, step=step) if isinstance(e, StopAt) else e for e in effects)
        return replace(after, stop_at_step=step), orders, words

    return patch.multiple(ending, settle_stop=late)


def given_up_too_soon() -> AbstractContextManager[Any]:
    """Without checkpoints a run is given up when one who was asked has gone."""

    def found(state: State, policy: Policy) -> Base | None:
        base, reconfiguration_ = find_base(state, policy), state.reconfiguration
        live = {node.id for node in state.live_nodes()}
        whole = reconfiguration_ is not None and live.issuperset(reconfiguration_.asked)
        return base if whole or policy.checkpoint_every else None

    return patch.object(reconfiguration, "find_base", found)


def given_back_too_soon() -> AbstractContextManager[Any]:
    """The instance of whoever is given back is ended before it has handed on what it holds."""
    real = machine.release

    def release(state: State, event: NodesReleased, policy: Policy) -> Transition:
        decided = real(state, event, policy)
        if decided.state is state:
            return decided
        named = filter(None, map(state.node, event.nodes))
        return replace(decided, effects=(*decided.effects, *map(reconfiguration.give_back, named)))

    return patch.object(machine, "release", release)


def newcomer_ends_the_run() -> AbstractContextManager[Any]:
    """What any node took for a fault that all would meet ends the run."""
    return patch.object(faults, "owns_slot", lambda state, node: True)


def others_are_taken() -> AbstractContextManager[Any]:
    """A node with other numerics than the run may join."""
    real = machine.attest

    def attest(state: State, event: Attested, **how: Any) -> Transition:
        if state.attested is not None:
            return stale(state, "somebody has attested already")
        return real(state, event, **how)

    return patch.multiple(machine, attest=attest, unlike=lambda *_, **__: None)


BUGS: dict[str, Bug] = {
    bug.__name__: bug
    for bug in (
        shadow_not_cleared,
        caught_up_by_anybody,
        generation_not_raised,
        oldest_base,
        part_missing,
        part_of_another_layout,
        gone_report_counts,
        yields_to_nobody,
        finished_before_caught_up,
        late_joiner_forgotten,
        standby_with_a_notice,
        refilled_under_the_same_generation,
        stop_at_the_earliest,
        boundary_of_the_slowest,
        nobody_promoted,
        no_second_round,
        forgotten_step,
        stop_forgotten,
        stops_a_step_late,
        given_up_too_soon,
        a_failed_checkpoint_takes_another_along,
        given_back_too_soon,
        judged_whatever_is_refused,
        patient_whatever_is_refused,
        newcomer_ends_the_run,
        nothing_kept,
        kept_by_who_goes_first,
        a_writer_lost,
        others_are_taken,
    )
}


@contextmanager
def planted(name: str) -> Iterator[None]:
    """With one of the bugs in the core."""
    with BUGS[name]():
        yield


def find(name: str, *, first: int = 0, within: int = WITHIN) -> Verdict | None:
    """The first seed in which a planted bug is found; None: it is not."""
    with planted(name):
        for seed in range(first, first + within):
            verdict = play_seed(seed)
            if not verdict.green:
                return verdict
    return None


def main() -> int:
    """Look for all of them; the exit code: 0 all were found."""
    missed = 0
    for name in BUGS:
        verdict = find(name)
        missed += verdict is None
        found = "not found" if verdict is None else f"seed {verdict.seed}: {verdict.checker}, "
        sys.stdout.write(f"{name}: {found}{'' if verdict is None else verdict.sentence}\n")
        sys.stdout.flush()
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
