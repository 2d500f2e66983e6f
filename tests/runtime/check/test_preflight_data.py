"""A job's own data before a launch: the same when it is asked again, with a count for each step."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from bamboo.config.tree import EvalConfig, JobConfig
from bamboo.data.dataset import load_data
from bamboo.errors import InputError
from bamboo.models import build_model
from bamboo.runtime.check.alone import Alone
from bamboo.runtime.check.preflight import preflight
from bamboo.wiring import run_preflight
from tests.data.own_data import SOURCE, own_job
from tests.runtime.check.odd_models import HEAD, assert_refused

ROWS = """
table = torch.arange(80.0).view(20, 4) / 80
class Table:
    samples, digest, unit = 20, "rows", "row"
    def batch(self, i, keys): return (table[i],), (table[i].sum(1, keepdim=True),)
class Rows(Table):
    calls = 0
{body}
def loss(output, targets): return {loss}
def metrics(output, targets): return {metrics}
def build(job):
    layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
    return Workload(layers=layers, loss=loss, data=Rows(), metrics=metrics)
"""
SUM = "(output - targets).square().sum()"


def _job(
    folder: Path, body: str = "", loss: str = SUM, metrics: str = "{'rows': (1, 1)}"
) -> JobConfig:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return own_job(folder, HEAD + ROWS.format(body=lines, loss=loss, metrics=metrics))


def test_own_data_pass_and_are_described_without_words_of_text(
    tmp_path: Path, alone: Alone
) -> None:
    seen = preflight(_job(tmp_path), alone)
    assert (seen["unit"], seen["samples"]) == ("row", 20)
    assert (seen["data"], seen["unigram_entropy_nats"]) == ({}, None)


def test_the_largest_microbatch_gives_the_bytes_and_all_give_the_times(
    tmp_path: Path, alone: Alone
) -> None:
    job = own_job(tmp_path)
    rows = load_data(job, own=build_model(job).data)
    words = [rows.microbatch(0, m)[0][0].numel() for m in range(4)]
    assert max(words) > words[0], "the first is not the largest"
    first, middle, last = preflight(job, alone)["layers"]
    assert first["output_bytes"] == first["back_bytes"] == 4 * 8 * max(words)
    assert last["output_bytes"] == 4 * 9 * max(words)
    assert middle["spread"] > 0


def test_what_a_layer_returns_has_one_number_of_tensors_and_their_types(
    tmp_path: Path, alone: Alone
) -> None:
    job = own_job(
        tmp_path,
        SOURCE.replace(
            "return self.table(words) * there.unsqueeze(-1)",
            "y = self.table(words) * there.unsqueeze(-1)\n"
            "        return y.double() if words.shape[1] > 4 else y",
        ).replace("[First, ", "[First, Float, ")
        + "class Float(nn.Module):\n    def forward(self, x): return x.float()\n",
    )
    assert_refused(
        job,
        alone,
        "layer 0 (First) returns (torch.float32) for one microbatch and (torch.float64) for "
        "microbatch 2; return as many tensors of the same types for each",
    )


def batch(line: str) -> str:
    return f"def batch(self, i, keys):\n    (x,), t = super().batch(i, keys)\n    {line}"


REFUSED = {
    "noise": (batch("return (x + torch.rand(()),), t"), "the data give other inputs when they are"),
    "noise of numpy": (batch("return (x,), (t[0] * np.random.rand(),)"), "give other targets"),
    "a counter": (
        batch("self.calls += 1; return (x + self.calls,), t"),
        "asked again for microbatch 0 of step 0; make a sample of its number and its key alone",
    ),
    "what its process was started with": (
        batch("return (x + len(sys.argv[0]),), t"),
        "the data give other inputs in another process",
    ),
    "targets by what it was started with": (
        batch("return (x,), (t[0] + len(sys.argv[0]),)"),
        "the data give other targets in another process",
    ),
    "what fails elsewhere": (
        batch("return (x,), (t[0] + {True: 1}[sys.argv != ['another']],)"),
        "the data fail in another process, as on a node that joins: KeyError",
    ),
    "short numbers": (batch("return (x.short(),), t"), "the data give torch.int16, which is not"),
    "two types": (
        batch("self.calls += 1; return (x if self.calls % 2 else x.double(),), t"),
        "the data give inputs (torch.float32) and targets (torch.float32) in microbatch 0 of step "
        "0 and inputs (torch.float64) and targets (torch.float32) in microbatch 1 of step 0; give",
    ),
    "no tuple": (batch("return x, t"), "the data's batch gives inputs that are 'Tensor'"),
    "arrays": (batch("return (x.numpy(),), t"), "that are a tuple of 1 (ndarray); return"),
    "targets of another shape": (
        batch("return (x,), (t[0][:, 0],)"),
        "give output and targets, (2, 1) and (2,), the same shape",
    ),
    "what fails": (batch("return x[99], t"), "the data fail: IndexError"),
    "a step that counts nothing": (
        "def count(self, index, key): return 0",
        "step 0: the data counts 0 for all of its samples",
    ),
    "a count that draws": (
        "def count(self, index, key): return random.randrange(1, 1000)",
        "when they are asked again for microbatch 0 of step 0; count a sample by its number and",
    ),
    "a count by its process": (
        "def count(self, index, key): return len(sys.argv[0])",
        "in another process, as on a node that joins, and",
    ),
    "a digest by its process": (
        "digest = sys.argv[0]",
        "the data have 20 samples of digest 'another' in another process, as on a node that joins",
    ),
    "two types in a later microbatch": (
        batch("return (x.double() if keys[0] % 2 else x,), t"),
        "give as many tensors of the same types in each",
    ),
}


@pytest.mark.parametrize(("body", "message"), REFUSED.values(), ids=REFUSED)
def test_odd_data_are_refused(tmp_path: Path, alone: Alone, body: str, message: str) -> None:
    assert_refused(_job(tmp_path, body), alone, message)


def _evaluated(folder: Path, body: str) -> JobConfig:
    job = _job(folder, body)
    source = Path(job.file).parent / "mine.py"
    text = source.read_text()
    source.write_text(text.replace("data=Rows()", "data=Table(), eval_data=Rows()"))
    return replace(job, eval=EvalConfig(every_steps=1, samples=5))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("digest = sys.argv[0]", "[eval] have digest 'another' in another process, as on a node"),
        (
            batch("return (x,), (t[0] + (max(i) > 3) * len(sys.argv[0]),)"),
            "the data of [eval] have microbatch 2 of checksum ",
        ),
        (
            batch("return (x,), (t[0] + {True: 1}[sys.argv != ['another']],)"),
            "the data of [eval] fail in another process, as on a node that joins: KeyError",
        ),
    ],
)
def test_odd_data_of_an_evaluation_are_refused(
    tmp_path: Path, alone: Alone, body: str, message: str
) -> None:
    assert_refused(_evaluated(tmp_path, body), alone, message)


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        ("(output - targets).square().mean()", "it is no sum over what is counted"),
        ("(output - targets).square()", "and type torch.float32; return a torch.float32 tensor"),
        (f"{SUM} / 0", "the loss at the start is inf"),
    ],
)
def test_a_loss_of_own_data_is_a_sum(tmp_path: Path, alone: Alone, loss: str, message: str) -> None:
    assert_refused(_job(tmp_path, loss=loss), alone, message)


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ("3", "the metrics fail: "),
        ("{'n': 1}", "the metrics fail: "),
        ("{'n': (output, 1)}", "the metrics fail: "),
        ("{'a\\nb': (1, 1)}", "a metric is named 'a\\nb'"),
        ("{'': (1, 1)}", "a metric is named ''"),
        ("{str(n): (1, 1) for n in range(65)}", "the metrics have 65 names"),
        ("{'n': (torch.rand(()), 1)}", "the metric 'n' differs when it is asked again"),
    ],
)
def test_metrics_are_pairs_of_numbers_by_name(
    tmp_path: Path, alone: Alone, metrics: str, message: str
) -> None:
    assert_refused(_job(tmp_path, metrics=metrics), alone, message)


THREAD = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"


@pytest.mark.usefixtures("warm_torch")
def test_processes_and_threads_of_the_users_file_are_not_waited_for(tmp_path: Path) -> None:
    """A process has all that its parent has open; for a thread Python itself waits at the end."""
    run_preflight(
        _job(tmp_path, "import os, time\nif os.fork() == 0:\n    time.sleep(600)\n" + THREAD)
    )


@pytest.mark.usefixtures("warm_torch")
@pytest.mark.parametrize("of", [_job, pytest.param(_evaluated, marks=pytest.mark.full)])
def test_data_that_follow_the_order_of_a_set_are_refused(
    tmp_path: Path, of: Callable[[Path, str], JobConfig]
) -> None:
    """In a launch, whose processes all have the same order."""
    names = "names = list({f'file {n}' for n in range(20)})\n"
    body = batch("return (x + int(self.names[0].split()[1]),), t")
    with pytest.raises(InputError, match=r"where text has other hashes, .*: sort every set of"):
        run_preflight(of(tmp_path, names + body))
