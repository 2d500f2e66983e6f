"""What a plain screen tells of a run's decisions, and what it leaves to the log."""

import io

import pytest
from rich.console import Console

from bamboo.coord.follow import Decision
from bamboo.core import events
from bamboo.core.machine import transition
from bamboo.core.state import Fact, Holding, Norm, Outcome, Policy, State
from bamboo.ids import InstanceId, NodeId, ZoneId
from bamboo.runs.progress import Progress
from cli.screen import LiveScreen, PlainScreen
from tests.core.build import failed, forming, joined

NODES = [NodeId(f"{name}.1") for name in "abcde"]
FACTS = (Fact(name="torch", value="2.13.0"),)
POLICY = Policy(cuts=((0, 2, 4),), virtual_nodes=4, pipelines=2, checkpoint_every=5)


class Told:
    """A run whose decisions are shown as they are made."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *, verbose: bool = True) -> None:
        self._capsys, self._screen = capsys, PlainScreen(verbose=verbose)
        self.state: State = forming(pipelines=2, stages=2, redundancy="peer")
        said = events.Attested(
            node=NODES[0], instance=InstanceId("a"), zone=ZoneId("z1"), numerics=FACTS
        )
        self.begun = self.by(said, *map(joined, NODES))

    def by(self, *happened: events.Event) -> list[str]:
        """The lines that are shown of these."""
        self._capsys.readouterr()
        for event in happened:
            decided = transition(self.state, event, now_s=0.0, policy=POLICY)
            self.state = decided.state
            progress = Progress(
                run="r", steps=9, tokens_per_step=1, state=self.state, started_at_s=0.0, now_s=0.0
            )
            decision = Decision(
                event=event,
                now_s=0.0,
                effects=decided.effects,
                reason=decided.reason,
                state=self.state,
                author="test",
            )
            self._screen.decided(progress, decision)
        return self._capsys.readouterr().out.splitlines()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Told:
    return Told(capsys)


def test_by_itself_a_screen_tells_what_a_run_comes_to(capsys: pytest.CaptureFixture[str]) -> None:
    run = Told(capsys, verbose=False)
    (start,) = run.begun
    assert start == "running: d.1 joined in zone z1, the last one: training starts on 2 x 2"
    assert len(Told(capsys).begun) == 6, "with --verbose each is told"
    assert not run.by(events.NodeFinished(node=NODES[0], step=8)), "the receipt says it"
    assert not run.by(joined("f.1"))
    (begun,) = run.by(events.NoticeReceived(node=NODES[1], deadline_s=120.0))
    assert begun.startswith("reconfiguring: the cloud takes b.1 ")


def test_a_start_that_takes_a_while_says_how_far_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    state = transition(forming(stages=3), joined("a.1"), now_s=0.0, policy=POLICY).state
    screen = PlainScreen()
    for now_s in (105, 111, 112, 135, 140):
        screen.turned(
            Progress(
                run="r", steps=9, tokens_per_step=1, state=state, started_at_s=100.0, now_s=now_s
            )
        )
    assert capsys.readouterr().out.splitlines() == [
        "forming: 1 of 3 nodes after 11 s; each boots first, and imports the job's code",
        "forming: 1 of 3 nodes after 35 s; each boots first, and imports the job's code",
    ]


def stopped(node: NodeId, since: int, first: int) -> events.Quiesced:
    held = (Holding(first=first, stop=first + 2, step=5, reach=5),) if first >= 0 else ()
    norms = (Norm(step=4, total_square=1.0),) if held else ()
    return events.Quiesced(node=node, since=since, holdings=held, norms=norms)


def test_a_reconfiguration_is_told_in_three_lines(run: Told) -> None:
    (begun,) = run.by(events.NoticeReceived(node=NODES[1], deadline_s=120.0))
    assert "a new layout at the next boundary" in begun
    since = run.state.version
    assert not run.by(*(events.BoundaryReady(node=n, since=since, step=4) for n in NODES))
    firsts = dict(zip(NODES, (0, 2, 0, 2, -1), strict=True))
    decided = run.by(*(stopped(node, since, first) for node, first in firsts.items()))
    assert decided == ["reconfiguring, generation 3: 4 nodes on 2 x 2, from step 5 on"]
    assert run.state.assignment is not None
    owners = run.state.assignment.members()
    (on,) = run.by(*(events.LayoutBuilt(node=n, since=since, bytes=0) for n in sorted(owners)))
    assert on.startswith("running, generation 4: all go on from step 5 on 2 x 2: ")


def test_a_stop_is_told_in_three_lines(run: Told) -> None:
    (asked,) = run.by(events.StopRequested(reason="why", outcome=Outcome.STOPPED))
    assert "stopping at the next step that all can finish: why" in asked
    members = NODES[:4]
    (fixed,) = run.by(*(events.StopReady(node=node, step=4) for node in members))
    assert fixed == "running, generation 1: all stop after step 4"
    (over,) = run.by(*(events.NodeFinished(node=node, step=4) for node in members))
    assert over.endswith("why: all stopped at a step boundary")


def test_a_run_that_waits_for_nodes_says_so(run: Told) -> None:
    run.by(*(events.PeerLost(node=n, reporter="test", cause="disconnect") for n in NODES[1:]))
    assert run.state.reconfiguration is not None
    (said,) = run.by(stopped(NODES[0], run.state.reconfiguration.since, 0))
    assert said.endswith(": waiting for nodes: 1 of 2 are here")


def test_a_node_that_cannot_take_part_is_told_in_one_line(run: Told) -> None:
    (line,) = run.by(failed("z.1", events.FaultScope.RUN, "its data differ"))
    assert line == (
        "running, generation 1: node z.1 cannot take part and leaves: its data differ; "
        "no other is rented for 5 s (try 1)"
    )


def test_a_checkpoint_as_planned_is_told_in_detail_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for verbose in (False, True):
        run = Told(capsys, verbose=verbose)
        era = run.state.era
        run.by(*(events.ShardSaved(node=NODES[n], step=5, era=era, stage=n) for n in (0, 1)))
        told = run.by(events.CheckpointDone(node=NODES[1], step=5, era=era))
        assert [one.step for one in run.state.checkpoints] == [5]
        line = "running, generation 1: the checkpoint of step 5 is complete"
        assert told == ([line] if verbose else [])
        (said,) = run.by(events.CheckpointFailed(node=NODES[1], step=10, era=era, reason="why"))
        assert "the checkpoint of step 10 failed, training goes on: why" in said


def test_on_a_live_screen_it_stands_above_what_changes() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=200)
    state = forming(stages=2)
    progress = Progress(
        run="r", steps=9, tokens_per_step=1, state=state, started_at_s=0.0, now_s=0.0
    )
    with LiveScreen(console) as screen:
        for event in (failed("z.1", events.FaultScope.NODE, "its disk is full"), joined("a.1")):
            decided = transition(progress.state, event, now_s=0.0, policy=POLICY)
            decision = Decision(
                event=event,
                now_s=0.0,
                effects=decided.effects,
                reason=decided.reason,
                state=decided.state,
                author="test",
            )
            screen.decided(progress, decision)
    assert console.file.getvalue().count("z.1 cannot take part") == 1  # type: ignore[attr-defined]
