"""What a person sees, as exact text."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from bamboo import quantities
from bamboo.billing.money import bill
from bamboo.billing.receipt import receipt_body
from bamboo.core.state import Outcome
from bamboo.quantities import size
from bamboo.runs.preemption_lines import preemption_line
from bamboo.runs.progress import Preemption, Progress, status_body
from cli import echo
from cli.views.live import decision_line, screen, step_line
from cli.views.logs import log_line
from cli.views.receipt import receipt_text, summary_text
from cli.views.status import list_text, status_text
from cli.views.verify import decisions_text, verify_text
from tests.controller.world import (
    START_S,
    World,
    caught_up,
    finished,
    job,
    joined,
    left,
    lost,
    node,
    step,
)

FAILOVER = {
    "kind": "failover",
    "victim": "i-2.0",
    "seen_s": 10.0,
    "decided_s": 10.007,
    "promoted_s": 10.009,
    "first_operation_s": 10.0093,
}


def in_the_middle() -> Progress:
    """A run of 3 steps that lost the owner of stage 2 and has finished two steps."""
    world = World(job(), [])
    state = world.launcher
    for happening in (
        *joined(), step(0, 5.5, 2.0), lost(2, 1), caught_up(1, 2), FAILOVER, step(1, 4.25, 4.0),
    ):  # fmt: skip
        world.do(happening)
        state._read(timeout_s=0.0)
    world.store.beat(
        node(1), '{"progress":9,"step":2,"ops":{"F":21,"B":20,"FR":8},"tensor_bytes":1536000}'
    )
    world.clock_s = START_S + 65.0
    state._due_at_s.clear()
    state._read(timeout_s=0.0)
    return state.progress.at(now_s=world.clock_s, usd=0.0125)


def drawn(progress: Progress, width: int = 110) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width, color_system=None, force_terminal=False).print(screen(progress))
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_the_screen() -> None:
    assert drawn(in_the_middle()) == [
        "r  degraded  generation 2  node i-1.0 caught up with stage 2 in step 1: 2 forwards "
        "recomputed, 3 had been",
        "computed ahead, first operation 41 ms after the loss was seen",
        "step 2/3 ━━━━━━━━━━━━━━━━━━━━           1:05 passed 0:02 to go",
        "loss 4.2500  1,024 tokens/s lately  $0.0125 so far (modelled)  327,680 tokens/$",
        "node   zone        status  owns      F   B  FR  BR  tensors  shadowed by",
        "i-0.0  us-east-1a  member  0.0       0   0   0   0      0 B  i-3.0",
        "i-1.0  us-east-1a  member  0.1 0.2  21  20   8   0  1.5 MiB  i-0.0 nobody",
        "i-3.0  us-east-1a  member  0.3       0   0   0   0      0 B  nobody",
        "i-2.0  us-east-1a  gone              0   0   0   0      0 B",
        "! step 1: i-2.0 (stage 2, us-east-1a) lost, i-1.0 went on in 259 ms, redid 2",
    ]


def test_a_narrow_screen_spares_whole_columns() -> None:
    heads = {
        next(line for line in drawn(in_the_middle(), width) if line.startswith("node "))
        for width in (70, 60)
    }
    assert heads == {
        "node   zone        status  owns      F   B  FR  BR  shadowed by",
        "node   status  owns      F   B  FR  BR  shadowed by",
    }


def test_an_empty_screen() -> None:
    progress = World(job(), []).launcher.progress
    assert drawn(progress) == [
        "r  forming  generation 0  waiting for 4 nodes",
        "step 0/3                                0:00 passed",
        "$0.00 so far (modelled)",
    ]


def test_the_dollars_of_an_account_are_not_called_modelled() -> None:
    real = replace(in_the_middle(), modelled=False)
    assert "$0.0125 so far  327,680 tokens/$" in step_line(real)


def test_plain_lines() -> None:
    progress = in_the_middle()
    assert step_line(progress) == (
        "step 2/3  loss 4.2500  1,024 tokens/s lately  $0.0125 so far (modelled)  327,680 "
        "tokens/$  0:02 to go"
    )
    assert decision_line(progress, "why") == "degraded, generation 2: why"


def test_data_of_their_own_are_counted_in_samples_with_what_the_model_measures() -> None:
    seen = in_the_middle()
    metrics = {f"m{n}": n / 8 for n in range(5)} | {"\x1b[2J": 1.0}
    recent = (*seen.recent[:-1], replace(seen.recent[-1], metrics=metrics))
    own = replace(seen, tokens_per_step=0, unit="image", recent=recent)
    words = (
        "loss 4.2500  m0 0  m1 0.125  m2 0.25  m3 0.375  and 2 more metrics  8.0 samples/s lately"
    )
    assert words in step_line(own)
    status = status_body(own)
    assert (status["unit"], status["metrics"]) == ("image", metrics)
    assert (status["tokens_per_s"], status["tokens_per_usd"]) == (None, None)
    total = bill([], now_s=START_S, modelled=True)
    receipt = receipt_body(
        own, total, samples_per_step=16, unigram_entropy_nats=None, final_note=""
    )
    assert (receipt["unit"], receipt["last_metrics"]) == ("image", metrics)
    assert [v for k, v in receipt.items() if k.startswith("tokens")] == [None] * 3
    ended = {**receipt, "nodes": []}
    for text in (status_text(status), summary_text(ended), receipt_text(receipt)):
        assert not any(word in text for word in ("token", "entropy", "\x1b"))


def test_preemption_lines() -> None:
    planned = Preemption(
        at_s=0.0, node=node(3), zone="us-east-1b", slots=(), planned=True, sentence="it went",
        already_computed=0, recomputed=8, seen_pause_s=0.0402,
    )  # fmt: skip
    assert preemption_line(planned) == (
        "notice kept in us-east-1b: it went; nothing was computed again; pause 40 ms"
    )
    bare = Preemption(
        at_s=0.0, node=node(3), zone="us-east-1b", slots=(), planned=False, sentence="it is gone"
    )
    assert preemption_line(bare) == "preemption in us-east-1b: it is gone"


def test_a_pause_is_one_figure_wherever_it_is_told() -> None:
    body = receipt_body(
        in_the_middle(),
        bill([], now_s=START_S, modelled=True),
        samples_per_step=16,
        unigram_entropy_nats=None,
        final_note="",
    )
    (told,) = body["preemptions"]
    assert "; pause 259 ms (disconnect 250 ms, " in told["line"]
    assert round(told["pause_s"], 4) == round(sum(told["parts_s"].values()), 4) == 0.2593


def test_status() -> None:
    assert status_text(status_body(in_the_middle())).splitlines() == [
        "r: degraded, generation 2, version 6",
        "  node i-1.0 caught up with stage 2 in step 1: 2 forwards recomputed, 3 had been computed "
        "ahead, first operation 41 ms after the loss was seen",
        "  step 2/3, loss 4.2500, 1,024 tokens/s over the last ten steps, $0.0125 so far, "
        "327,680 tokens/$",
        "  node   zone        status  owns     shadows   F   B  FR  BR  tensors",
        "  i-0.0  us-east-1a  member  0.0      0.1       0   0   0   0      0 B",
        "  i-1.0  us-east-1a  member  0.1 0.2           21  20   8   0  1.5 MiB",
        "  i-3.0  us-east-1a  member  0.3      0.0       0   0   0   0      0 B",
        "  i-2.0  us-east-1a  gone                       0   0   0   0      0 B",
    ]


def test_sentences_of_a_status_fit_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.views.status.terminal_width", lambda: 60)
    head = status_text(status_body(in_the_middle())).partition("\n  node   zone")[0].splitlines()
    assert len(head) > 4, "the sentences are broken"
    assert max(map(len, head)) <= 60


def test_status_body_has_the_keys_of_the_interface() -> None:
    body = status_body(in_the_middle())
    assert {"phase", "generation", "version", "step", "loss", "usd", "tokens_per_usd", "nodes"} <= (
        body.keys()
    )
    first = body["nodes"][0]
    assert {"id", "instance", "pid", "zone", "owns", "shadows"} <= first.keys()
    assert (first["id"], first["instance"], first["pid"]) == ("i-0.0", "i-0", 100)


def test_list() -> None:
    rows = [
        {"run": "a", "started": "2026-11-20T23:10:00+00:00", "phase": "finished",
         "outcome": "stopped", "step": 90, "steps": 100, "usd": 1.5, "damage": None,
         "disk_bytes": 5_000_000},
        {"run": "bad", "started": None, "phase": "damaged",
         "outcome": None, "step": None, "steps": None, "usd": None, "damage": "it is torn",
         "disk_bytes": 512},
        {"run": "long-name", "started": "2026-11-21T00:00:00+00:00", "phase": "lost",
         "outcome": None, "step": 3, "steps": 20, "usd": 0.00125, "damage": None,
         "disk_bytes": 0},
    ]  # fmt: skip
    assert list_text(rows).splitlines() == [
        "run        started                    state      step     cost     disk",
        "a          2026-11-20T23:10:00+00:00  stopped  90/100    $1.50  4.8 MiB",
        "bad        -                          damaged       -        -    512 B",
        "long-name  2026-11-21T00:00:00+00:00  lost       3/20  $0.0013      0 B",
        "bad: it is torn",
    ]


def test_summary_and_receipt() -> None:
    world = World(
        job(), [joined(), step(0, 5.5), step(1, 4.5), [step(2, 2.0), finished(2, 0, 1, 2, 3)],
                left(0, 1, 2, 3)],
    )  # fmt: skip
    progress = world.launcher.run()
    assert progress.outcome is Outcome.DONE
    total = bill(world.fleet.rented(), now_s=START_S + 90.0, modelled=True)
    progress = progress.at(now_s=START_S + 90.0, usd=total.usd)
    body = receipt_body(
        progress, total, samples_per_step=16, unigram_entropy_nats=3.25, final_note=""
    )
    assert body["exit_code"] == 0
    assert body["samples_per_usd"] == 48 / total.usd
    assert summary_text(body).splitlines() == [
        "r: done after step 3/3 in 1 min 30 s: node i-3.0 (stage 3) finished step 2, the last one: "
        "the run is done",
        "  loss 5.5000 -> 2.0000",
        "  mean loss of the last 3 steps 4.0000, not below the data's unigram entropy of 3.2500 "
        "nats per token",
        "  0 preemptions",
        "  operations per node; FR and BR: the redundant ones, of the neighbour's stage",
        "    node   zone        F  B  FR  BR  tensors at peak",
        "    i-0.0  us-east-1a  0  0   0   0              0 B",
        "    i-1.0  us-east-1a  0  0   0   0              0 B",
        "    i-2.0  us-east-1a  0  0   0   0              0 B",
        "    i-3.0  us-east-1a  0  0   0   0              0 B",
    ]
    assert receipt_text(body).splitlines() == [
        "receipt (modelled dollars: no dollar was paid)",
        "  instance  type         zone  market  seconds  billed     $/h    total",
        "  i-0       g4dn.xlarge  a     spot       90.0      90  0.3600  $0.0090",
        "  i-1       g4dn.xlarge  a     spot       90.0      90  0.3600  $0.0090",
        "  i-2       g4dn.xlarge  a     spot       90.0      90  0.3600  $0.0090",
        "  i-3       g4dn.xlarge  a     spot       90.0      90  0.3600  $0.0090",
        "  total $0.0360 for 360 instance-seconds, 50% of $0.0720 on-demand",
        "  came to, over the whole run: 0.5 samples/s, 1,333 samples per dollar",
        "  6,144 tokens, 170,667 tokens per dollar, 68.3 tokens/s",
    ]


def test_a_run_that_started_nothing() -> None:
    progress = World(job(), []).launcher.progress
    ended = replace(progress.state, outcome=Outcome.STOPPED)
    body = receipt_body(
        replace(progress, state=ended, ending="interrupted before training began"),
        bill([], now_s=START_S, modelled=True),
        samples_per_step=16,
        unigram_entropy_nats=3.25,
        final_note="no final state: no step was finished",
    )
    assert summary_text(body).splitlines() == [
        "r: stopped after step 0/3 in 0.0 ms: interrupted before training began",
        "  no final state: no step was finished",
        "  0 preemptions",
    ]
    assert receipt_text(body) == "receipt: no instance was started, nothing is to be paid"


def test_verify() -> None:
    equal = {"equal": True, "semantic_hash": "abc", "steps": 100, "tensors": 1}
    assert verify_text("r", equal) == (
        "r: bitwise equal to a calm run of the same semantics (abc): 100 losses and 1 tensor of "
        "the final state"
    )
    first = {"step": 3, "tensor": "loss", "calm": "0x1", "run": ["0x2"]}
    assert verify_text("r", {"equal": False, "first_difference": first}).splitlines() == [
        "r: differs first in step 3, loss", "  calm run: 0x1", "  this run: ['0x2']",
    ]  # fmt: skip
    part = {"part": 1, "decisions": 1, "first_version": 0}
    told = {"run": "r", "equal": True, "decisions": 1, "parts": [part], "unsaved_parts": []}
    whole = "r: 1 decision recomputed, each with the same state, effects and reason"
    assert decisions_text(told) == whole
    assert decisions_text({**told, "parts": [{**part, "first_version": 9}]}) == (
        f"{whole}\n  from version 9 on: the store lost the run once, and its members gave back no "
        "more than the end of the log"
    )
    assert decisions_text({"run": "r", "equal": False, "first_difference": "so"}) == "r: so"
    resumed = {**told, "decisions": 9, "parts": [part, {**part, "part": 3}], "unsaved_parts": [2]}
    assert decisions_text(resumed).splitlines() == [
        "r: 9 decisions of 2 parts recomputed, each with the same state, effects and reason",
        "  part 2 was killed with its store: its log is not saved",
    ]


def test_log_lines() -> None:
    event = (
        '{"v":1,"t":1.25,"run":"r","gen":2,"node":"launcher","kind":"PeerLost","step":3,'
        '"data":{"reason":"so"}}'
    )
    assert log_line("launcher", event) == (
        "launcher  00:00:01.250  step 3  generation 2  PeerLost  reason=so"
    )
    assert log_line("i-1", "plain text") == "i-1  plain text"


def test_quantities() -> None:
    assert [quantities.duration(s) for s in (0.0012, 0.5, 4.21, 59.9, 60, 3725)] == [
        "1.2 ms", "500 ms", "4.2 s", "59.9 s", "1 min 00 s", "1 h 02 min",
    ]  # fmt: skip
    assert [quantities.clock(s) for s in (-1, 42.4, 725, 3723)] == ["0:00", "0:42", "12:05",
                                                                   "1:02:03"]  # fmt: skip
    assert [quantities.usd(a) for a in (0, 0.00421, 1.374, 1204.1)] == [
        "$0.00", "$0.0042", "$1.37", "$1,204.10",
    ]  # fmt: skip
    assert [size(b) for b in (812, 3.4 * 2**20, 5000 * 2**30)] == [
        "812 B", "3.4 MiB", "4.9 TiB",
    ]  # fmt: skip
    assert [quantities.rate(v) for v in (0.0, 61.94, 12345.6)] == ["0.0", "61.9", "12,346"]
    assert quantities.count(1, "node") == "1 node"
    assert quantities.count(2, "loss", "losses") == "2 losses"
    assert echo.columns([]) == []
    assert echo.fold("a\n  one two three\n", width=12) == "a\n  one two\n    three"
