"""The plan and the end of a launch in few lines, and a preemption in one."""

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bamboo.ids import NodeId
from bamboo.sim.trace import Trace
from cli.finish import receipt_body
from cli.market import Replayed, TraceTerms
from cli.progress import Preemption
from cli.views.brief import END_LINES, PLAN_LINES, WIDTH, end_lines, plan_lines
from cli.views.node_names import short_names, with_short_names
from cli.views.preemption import short_preemption_line
from cli.views.quantities import rate
from tests.cli.test_planning import JOB, plan
from tests.cli.test_views import START_S, bill, in_the_middle

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
        cloud=replace(JOB.cloud, provider=provider),
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


def test_bytes_between_zones_are_in_the_price_of_a_plan() -> None:
    planned = plan(replace(JOB, cluster=replace(JOB.cluster, spread="neighbours")))
    text = "\n".join(plan_lines("r", planned))
    assert "/h for bytes, modelled, nothing is paid" in text
    promised = planned.promised()
    whole = rate(promised["samples_per_usd_with_transfer"])
    assert f" {whole} samples per dollar with bytes" in text
    assert max(map(len, text.splitlines())) <= WIDTH


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
        "outcome": st.sampled_from(["done", "stopped", "budget", "unrecoverable", "fault"]),
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
    assert short_preemption_line(early, progress) == "i-2.0 (a) lost, others took over"


def test_short_names_tell_all_nodes_apart() -> None:
    ids = [NodeId(f"i-{start}{'0' * 12}.0") for start in ("51cfe", "51cfd", "a1", "a2")]
    names = short_names(ids)
    assert list(names.values()) == ["i-51cfe", "i-51cfd", "i-a1000", "i-a2000"]
    assert with_short_names(f"node {ids[0]} is gone, says {ids[2]}", ids) == (
        "i-51cfe is gone, says i-a1000"
    )
    again = [NodeId("i-51cfe.0"), NodeId("i-51cfe.1")]
    assert short_names(again) == {node: node for node in again}
    assert short_names([]) == {}
