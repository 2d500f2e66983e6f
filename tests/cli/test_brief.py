"""The plan and the end of a launch in few lines, and a preemption in one."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo.billing.money import Rented
from bamboo.billing.receipt import receipt_body, with_taken
from bamboo.checkpoint.initial import Weights
from bamboo.core.events import StrategyProposed, StrategyReady
from bamboo.core.state import Outcome, Phase
from bamboo.ids import NodeId
from bamboo.quantities import rate
from bamboo.runs.node_names import short_names, with_short_names
from bamboo.runs.preemption_lines import short_preemption_line
from bamboo.runs.progress import Preemption
from bamboo.runs.reconfigured import Reconfigured
from bamboo.sim.market.trace import Trace
from bamboo.study.played_trace import Replayed, TraceTerms
from bamboo.study.workload import Modelled
from bamboo.topology.sync import Sync, SyncRule
from cli.views.brief import END_LINES, PLAN_LINES, WIDTH, end_lines, plan_lines
from cli.views.live import briefly_told_of
from tests.cli.test_views import START_S, bill, in_the_middle
from tests.core import test_emergency as emergencies
from tests.core.build import apply, lost, running
from tests.study.test_planning import JOB, plan

BODY = receipt_body(
    in_the_middle(),
    bill([], now_s=START_S, modelled=True),
    samples_per_step=16,
    unigram_entropy_nats=None,
    final_note="",
)


@pytest.mark.parametrize("redundancy", ["off", "stash", "eager", "peer"])
@pytest.mark.parametrize("provider", ["local", "ec2"])
@pytest.mark.parametrize("every", [0, 5])
def test_a_plan_has_few_lines(redundancy: str, provider: str, every: int) -> None:
    job = replace(
        JOB,
        cluster=replace(JOB.cluster, redundancy=redundancy),
        cloud=replace(JOB.cloud, provider=provider, instance_types=("g4dn.xlarge",)),
        checkpoint=replace(JOB.checkpoint, every_steps=every),
    )
    lines = plan_lines("a-run-1126-0931-qx", plan(job))
    assert len(lines) <= PLAN_LINES
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    assert f"redundancy {redundancy}" in text
    survived = redundancy in ("stash", "eager")
    assert ("any one loss, in the step" in text) == survived
    assert ("ends the run" in text or "end the run" in text) == (every == 0)
    assert ("real dollars" in text) == (provider == "ec2")


@pytest.mark.parametrize(
    ("pipelines", "every", "says"),
    [
        (1, 0, "no loss: the loss of its node without a notice ends the run"),
        (1, 5, "any loss by going back to a checkpoint, at most 5 steps"),
        (2, 0, "any one loss, from another pipeline; both end the run"),
        (2, 5, "any one loss, from another pipeline; both need a checkpoint"),
        (3, 0, "any one loss, from another pipeline, and any two at once"),
    ],
)
def test_what_nodes_with_the_whole_model_survive(pipelines: int, every: int, says: str) -> None:
    job = replace(
        JOB,
        train=replace(JOB.train, virtual_nodes=4),
        cluster=replace(JOB.cluster, stages=1, pipelines=pipelines, redundancy="auto"),
        checkpoint=replace(JOB.checkpoint, every_steps=every),
    )
    lines = plan_lines("a-run-1126-0931-qx", plan(job))
    assert max(map(len, lines)) <= WIDTH
    assert f"  survives    {says}" in lines


def test_the_weights_that_a_run_begins_with_take_no_further_line() -> None:
    weights = Weights(run="gpt-local-1126-2359-qr", step=100_000, tensors={}, shapes={})
    lines = plan_lines("r", plan(JOB), weights=weights)
    assert len(lines) <= PLAN_LINES
    assert max(map(len, lines)) <= WIDTH
    (said,) = [line for line in lines if line.startswith("  data  ")]
    assert said.endswith("; weights of gpt-local-1126-2359-qr@100000")


def test_the_plan_says_where_the_run_is_logged_to() -> None:
    lines = plan_lines("r", plan(JOB), logs_to={"wandb": "project p", "otlp": "x" * 100})
    first, second = (line for line in lines if line.startswith("  logs to "))
    assert first == "  logs to     wandb: project p"
    assert len(second) <= 80


def test_a_plan_and_a_receipt_say_what_their_rates_count() -> None:
    """A short run is billed for more than it trains: its rates differ by that and its start."""
    short, long = (
        plan(replace(JOB, train=replace(JOB.train, steps=steps))) for steps in (10, 100_000)
    )
    paid = short.usd_per_hour * 60 / 3600
    samples = 10 * JOB.train.batch
    (said,) = [line for line in plan_lines("r", short) if line.startswith("  the run  ")]
    assert said.endswith(f" as 60 s are billed: {rate(samples / paid)} per dollar")
    (said,) = [line for line in plan_lines("r", long) if line.startswith("  the run  ")]
    assert said.endswith(", without start and losses")

    planned = {"samples_per_s": 640.0, "samples_per_usd": 12345.0}
    value = {"samples_per_s": 80.0, "samples_per_usd": 800.0, "planned": planned}
    for seconds, billed_s, least in ((5.5, 60, ", 60 s at least"), (75.5, 76, "")):
        rented = {**BODY["bill"], "instances": [{"seconds": seconds, "billed_s": billed_s}]}
        lines = end_lines({**BODY, **value, "bill": rented})
        assert f"  value       80.0 samples/s, 800 per dollar, start to end{least}" in lines
        assert "  planned     640 samples/s, 12,345 per dollar, of calm steps alone" in lines


def test_bytes_between_zones_are_in_the_price_of_a_plan() -> None:
    planned = plan(replace(JOB, cluster=replace(JOB.cluster, spread="neighbours")))
    text = "\n".join(plan_lines("r", planned))
    assert "/h for bytes, modelled, nothing is paid" in text
    promised = planned.promised()
    whole = rate(promised["samples_per_usd_with_transfer"])
    assert f" {whole} samples per dollar with bytes" in text
    assert max(map(len, text.splitlines())) <= WIDTH


def test_a_plan_says_how_gradients_are_synchronised_if_they_do_not_all_go_whole() -> None:
    planned = plan(JOB)
    rows = Sync(rules=(SyncRule(match="0.*.weight", exchange="rows", ship="rows"),))
    by_layer = SyncRule(match="0.*.weight", exchange="tree", bucket=0)
    for sync, says in (
        (rows, "in place of"),
        (Sync(bucket=0), ", as many bytes as by tree, those of the last layers first"),
        (Sync(rules=(by_layer,)), ", as many bytes as by tree, those of the last layers first"),
        (Sync(rules=(replace(by_layer, bucket=None),)), ", as many bytes as by tree"),
    ):
        other = replace(planned, synced=replace(planned.synced, sync=sync, builder="auto"))
        lines = plan_lines("r", other)
        (said,) = [line for line in lines if line.startswith("  gradients   by auto, ")]
        assert says in said if sync == rows else said.endswith(says)
        assert len(lines) <= PLAN_LINES
        assert max(map(len, lines)) <= WIDTH
    assert "gradients" not in "\n".join(plan_lines("r", planned))


def test_a_notice_that_is_too_short_is_said_on_a_full_page_too() -> None:
    """Bytes, rate and notice, where a trace takes the last line but one."""
    chaos = replace(JOB.chaos, kills_per_hour=1.0, notice_share=0.5, notice_s=1.2)
    terms = TraceTerms(
        name="t.csv", time_scale=1.0, restart_s=None, max_nodes=4, hours=1.0, begin_s=0.0
    )
    played = Replayed(terms=terms, trace=Trace(source="t", events=(), length_s=3600.0), events=())
    planned = plan(replace(JOB, chaos=chaos))
    for lines in (plan_lines("r", planned), plan_lines("r", planned, played=played)):
        assert len(lines) == PLAN_LINES
        (said,) = [line for line in lines if "a notice of 1.2 s does not fit" in line]
        assert "KiB a stage at 0.62 GB/s" in said
        assert "more note" not in lines[-1], "nothing else is to be said"


receipts = st.fixed_dictionaries(
    {
        "outcome": st.sampled_from(list(Outcome)).map(str),
        "sentence": st.text("abc de", max_size=900),
        "final_note": st.text("abc de", max_size=400),
        "troubles": st.lists(st.text("abc de", max_size=200), max_size=9),
        "newest_checkpoint": st.none() | st.integers(0, 99),
        "preemptions": st.lists(
            st.fixed_dictionaries({"planned": st.booleans(), "line": st.text("xy ", max_size=150)}),
            max_size=40,
        ),
    }
)


@settings(max_examples=200)
@given(drawn=receipts)
def test_an_end_has_few_lines_whatever_happened(drawn: dict[str, Any]) -> None:
    lines = end_lines({**BODY, **drawn})
    assert len(lines) <= END_LINES
    assert max(map(len, lines)) <= WIDTH
    assert not any("\n" in line for line in lines)
    text = "\n".join(lines)
    assert drawn["outcome"] in lines[0]
    assert "bamboo report r" in text
    resumable = drawn["newest_checkpoint"] is not None and drawn["outcome"] != "done"
    assert ("bamboo resume r" in text) == resumable


def test_a_receipt_of_an_older_release_has_an_end_too() -> None:
    body = json.loads(json.dumps(BODY))
    for one in body["preemptions"]:
        del one["short"]
    for later in ("planned", "troubles"):
        body.pop(later, None)
    assert len(end_lines(body)) <= END_LINES


def test_a_preemption_is_one_line_with_short_names() -> None:
    progress = in_the_middle()
    (lost,) = progress.preemptions
    assert short_preemption_line(lost, progress) == (
        "step 1: i-2.0 (stage 2, us-east-1a) lost, i-1.0 went on in 259 ms, redid 2"
    )
    noticed = replace(lost, planned=True)
    assert short_preemption_line(noticed, progress) == (
        "step 1: i-2.0 (stage 2, us-east-1a) left after a notice, i-1.0 went on"
    )
    early = Preemption(
        at_s=0.0, node=NodeId("i-2.0"), zone="a", slots=(), planned=False, sentence="s"
    )
    assert short_preemption_line(early, progress) == "i-2.0 (a) lost, which held no stage"


def test_a_loss_that_no_live_node_took_over_says_what_all_did() -> None:
    progress = in_the_middle()
    lost = replace(progress.preemptions[0], at_s=5.0, successors=(), parts_s={}, seen_pause_s=None)
    lost = replace(lost, step=None)
    earlier = Reconfigured(
        at_s=4.0, took_s=1.0, grid="1 x 4", step=9, checkpoint=True, steps_again=9, sent_bytes=0,
        why="w",
    )  # fmt: skip
    back = replace(earlier, at_s=6.0, step=10, steps_again=2)
    on = replace(back, steps_again=0)

    def line(one: Preemption, *reconfigured: Reconfigured, over: bool = False) -> str:
        phase = Phase.FINISHED if over else Phase.RESTORING
        state = replace(progress.state, phase=phase)
        return short_preemption_line(one, replace(progress, state=state, reconfigured=reconfigured))

    who = "i-2.0 (stage 2, us-east-1a) lost"
    assert line(lost, earlier, back) == f"{who}, all went back 2 steps, to 10"
    assert line(lost, earlier, on) == f"{who}, all went on from step 10"
    assert line(lost, earlier) == f"{who}, all wait for nodes"
    assert line(lost, earlier, over=True) == f"{who}, nobody went on"
    node = progress.state.node(lost.node)
    assert node is not None
    warned = progress.state.with_nodes(replace(node, notice_deadline_s=7.0))
    told = replace(progress, state=warned, reconfigured=(on,))
    assert short_preemption_line(lost, told) == f"{who} after a notice, all went on from step 10"


def test_the_last_nodes_that_are_taken_together_are_lost_and_gone() -> None:
    progress = in_the_middle()

    def item(number: int, *, interrupted: bool) -> Rented:
        return Rented(
            instance=f"i-{number}", instance_type="t", zone="us-east-1a", market="spot",
            started_at_s=1.0, ended_at_s=9.0, interrupted=interrupted, usd_per_hour=1.0,
            on_demand_usd_per_hour=2.0,
        )  # fmt: skip

    rented = [item(0, interrupted=False), *(item(n, interrupted=True) for n in (1, 2, 3))]
    after = with_taken(progress, rented)
    (known, *new) = after.preemptions
    assert known is progress.preemptions[0]
    assert [(one.node, one.at_s, one.planned) for one in new] == [
        ("i-1.0", 9.0, False),
        ("i-3.0", 9.0, False),
    ]
    assert {node.id for node in after.state.nodes if node.status.live} == {"i-0.0"}
    assert with_taken(after, rented) == after


def test_losses_of_an_end_in_parts_are_those_of_its_last_part() -> None:
    def losses(parts: int) -> str:
        return next(line for line in end_lines({**BODY, "parts": parts}) if "losses" in line)

    assert losses(1) == "  losses      1 node lost; no step done again"
    assert losses(2) == "  losses      1 node lost in part 2; no step done again"


def test_no_figure_of_the_losses_is_cut_off() -> None:
    (lost,) = BODY["preemptions"]
    again = [{"steps_again": 20}] * 30
    body = {**BODY, "parts": 12, "preemptions": [{**lost, "noticed": True}] * 30}
    lines = end_lines({**body, "reconfigurations": again})
    assert " ".join(" ".join(lines).split()).count("; 600 steps done again") == 1
    assert len(lines) <= END_LINES


def test_a_loss_that_leaves_state_without_a_home_is_told_with_what_follows() -> None:
    noticed = emergencies.say(emergencies.running(), emergencies.notice(emergencies.A, 20.0)).state
    gone = lost(emergencies.B)
    decided = emergencies.say(noticed, gone)
    assert "all hold at a boundary and keep the state" in decided.reason
    assert briefly_told_of(decided.state, gone, decided.reason) == decided.reason
    calm = emergencies.say(emergencies.running(), gone)
    assert briefly_told_of(calm.state, gone, calm.reason) == "", "its own line tells of that"


def test_a_change_of_strategy_is_told_without_the_node_that_answered_last() -> None:
    asked = StrategyProposed(reporter="launcher", hash="0123", why="a trial of `rows`")
    state = apply(running(), asked).state
    for node in sorted(state.participants()):
        assert state.proposal is not None
        last = StrategyReady(node=node, since=state.proposal.since, begun=7, oldest=6)
        decided = apply(state, last)
        state = decided.state
    told = "strategy 1 (0123) counts from step 11 on: a trial of `rows`"
    assert decided.reason.endswith(f"has begun step 7; {told}")
    assert briefly_told_of(state, last, decided.reason) == told


def test_short_names_tell_all_nodes_apart() -> None:
    ids = [NodeId(f"i-{start}{'0' * 12}.0") for start in ("51cfe", "51cfd", "a1", "a2")]
    names = short_names(ids)
    assert list(names.values()) == ["i-51cfe", "i-51cfd", "i-a1000", "i-a2000"]
    assert with_short_names(f"node {ids[0]} is gone, says {ids[2]}", ids) == (
        "i-51cfe is gone, says i-a1000"
    )
    command = f"`bamboo logs r --node {ids[0]}`"
    assert with_short_names(command, ids) == f"`bamboo logs r --node {names[ids[0]]}`"
    again = [NodeId("i-51cfe.0"), NodeId("i-51cfe.1")]
    assert short_names(again) == {node: node for node in again}
    assert short_names([]) == {}


def test_a_launch_on_cards_that_nobody_measured_says_so() -> None:
    job = replace(JOB, cloud=replace(JOB.cloud, provider="ec2", instance_types=("g5.xlarge",)))
    here = plan(job)
    assert here.modelled is None
    assert not [line for line in plan_lines("r", here) if "not yet measured" in line]
    modelled = Modelled(workload=here.workload, gpu="A10G", why="")
    (line,) = [row for row in plan_lines("r", replace(here, modelled=modelled)) if "times" in row]
    assert line == "  times       of A10G: modelled, not yet measured on this card"
