"""Measuring the layers of tiny jobs: what is measured and how often, never how fast it is."""

import io
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from bamboo.config.load import job_to_json
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import load_data
from bamboo.errors import InputError
from bamboo.models import Tensors, as_leaves, build_model
from bamboo.planner.profiles.profiled import Profile
from bamboo.runtime.check import profile as room
from bamboo.runtime.check.alone import Alone
from bamboo.runtime.check.bench import LEAST_REPEATS, MOST_REPEATS, Bench, scatter
from bamboo.runtime.check.preflight import preflight
from bamboo.runtime.check.profile import Asked, Profiler, main
from bamboo.runtime.step.stage import Stage
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement
from tests.jobs import tiny_job
from tests.warm import ran

ASKED = Asked(device="cpu", limit_s=60.0, machine="here", seen="2026-11-21")
OWN = """
from torch import nn

class Mix(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 16)
    def forward(self, x):
        BODY
        return self.linear(x)

def build(job):
    first, last = (lambda: nn.Embedding(256, 16)), (lambda: nn.Linear(16, 256))
    narrow = lambda: nn.Linear(16, 12)
    return LAYERS
"""


def measured(job: JobConfig, asked: Asked = ASKED) -> Profile:
    return Profiler(job, asked, tell=lambda _done, _of_all: None).profile()


def own_job(folder: Path, layers: str, body: str = "") -> JobConfig:
    text = OWN.replace("LAYERS", layers).replace("BODY", body or "pass")
    (folder / "mine.py").write_text(text, encoding="utf-8")
    return tiny_job(folder, ["model.model=mine.py:build"])


def test_the_built_in_model(tmp_path: Path) -> None:
    job = tiny_job(tmp_path)
    told: list[tuple[int, int]] = []
    found = Profiler(job, ASKED, tell=lambda *step: told.append(step)).profile()
    assert [layer.name for layer in found.layers] == ["Embedding", "Block", "Block", "Head"]
    assert [layer.measured_as for layer in found.layers] == [0, 1, 1, 3]
    for layer in found.layers:
        assert min(layer.forward_s, layer.backward_s, layer.optimizer_s) > 0
        assert LEAST_REPEATS <= layer.repeats <= MOST_REPEATS
        assert layer.parameter_bytes == 4 * layer.parameters
        assert layer.optimizer.kernels > 0
    assert (found.torch, found.threads, found.machine) == (torch.__version__, 1, "here")
    assert not found.modelled
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]
    assert Profile.from_json(found.to_json()) == found
    layers = found.facts()
    named = (replace(one, name=f"2{one.name[1:]}", layer=2) for one in layers[1].synced)
    assert layers[2].synced == (*named,)
    older = json.loads(found.to_json())
    for layer in older["layers"]:
        del layer["synced"]
    assert not any(layer.synced for layer in Profile.from_json(json.dumps(older)).facts())


def test_bytes_are_those_that_the_preflight_and_whole_stages_see(
    tmp_path: Path, alone: Alone
) -> None:
    job = tiny_job(tmp_path)
    profiler = Profiler(job, ASKED, tell=lambda *_: None)
    found, seen = profiler.profile(), preflight(job, alone)["layers"]
    for layer, one in zip(found.layers, seen, strict=True):
        assert layer.parameters == one["parameters"]
        assert layer.output_bytes == one["output_bytes"]
    for layer, one in zip(found.layers[:-1], seen[:-1], strict=True):
        assert layer.activation_bytes == one["activation_bytes"]
    # The last layer holds what the loss needs, too.
    assert found.layers[-1].activation_bytes > seen[-1]["activation_bytes"]
    # Within a stage an output and the next layer's input are one and the same.
    in_two = _held_by_stages(job, profiler, (0, 2, 4))
    assert in_two <= _sum(found) <= 1.2 * in_two
    assert _held_by_stages(job, profiler, (0, 1, 2, 3, 4)) == _sum(found)


def _sum(found: Profile) -> int:
    return sum(layer.activation_bytes for layer in found.layers)


def _held_by_stages(job: JobConfig, profiler: Profiler, cut: tuple[int, ...]) -> int:
    """What autograd holds in all stages of a cut, one microbatch through all of them."""
    placement = Placement(cut=cut, grid=Grid(pipelines=1, stages=len(cut) - 1), redundancy="off")
    strategy = replace(profiler._strategy, placement=placement)
    data, held = load_data(job), 0
    x: Tensors = data.microbatch(0, 0)[0]
    for number in range(len(cut) - 1):
        stage = Stage(build_model(job), data, strategy, stage=number)
        pending, more = stage.measured_forward(x, 0, 0)
        x, held = as_leaves(pending.output), held + more
    return held


def test_each_layer_that_is_not_like_another_has_its_share_of_the_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[tuple[float, float]] = []

    def measured_at_once(profiler: Profiler, bench: Bench, *_: object, until_s: float) -> None:
        given.append((until_s - time.perf_counter(), profiler._deadline_s - time.perf_counter()))
        bench.warm_up()
        for _ in range(LEAST_REPEATS):
            bench.time_once()

    monkeypatch.setattr(Profiler, "_measure", measured_at_once)
    measured(tiny_job(tmp_path))
    assert len(given) == 3, "embedding, one block for all, head"
    for (until_s, left_s), share in zip(given, (1 / 3, 1 / 2, 1), strict=True):
        assert until_s == pytest.approx(share * left_s, rel=0.1)


def test_a_model_of_one_layer_has_a_loss_and_an_input_of_tokens(tmp_path: Path) -> None:
    (only,) = measured(own_job(tmp_path, "[lambda: nn.Embedding(256, 256)]")).layers
    assert (only.name, only.parameters) == ("Embedding", 256 * 256)
    assert only.forward_s > 0
    assert only.backward_s > 0


def test_the_bytes_of_several_tensors_are_those_of_each_direction(
    tmp_path: Path, alone: Alone
) -> None:
    body = "x, mask, sums = x if type(x) is tuple else (x, x > 0, x.sum(2))\n"
    body += "        x = self.linear(x) * mask\n        return x, mask, x.sum(2).detach()"
    job = own_job(tmp_path, "[first, Mix, Mix, Last]", body)
    source = job.named(job.model.own_file)
    last = "class Last(Mix):\n    def forward(self, x): return x[0] @ x[0].new_ones(16, 256)\n"
    last = last.replace("x[0] @", "self.linear(x[0]) @")
    source.write_text(source.read_text() + last, encoding="utf-8")
    found, (_, *seen) = measured(job).layers, preflight(job, alone)["layers"]
    numbers = job.train.microbatch * job.model.context * 16
    assert [layer.output_bytes for layer in found[1:3]] == [
        4 * numbers + numbers + numbers // 4
    ] * 2
    assert [layer.input_gradient_bytes for layer in found] == [0, *[4 * numbers] * 3]
    assert [one["back_bytes"] for one in seen[:2]] == [4 * numbers] * 2
    assert [one["output_bytes"] for one in seen[:2]] == [x.output_bytes for x in found[1:3]]


def test_layers_are_alike_by_who_makes_them_and_what_they_are_given(tmp_path: Path) -> None:
    one = measured(own_job(tmp_path, "[first, Mix, Mix, last]"))
    assert [layer.measured_as for layer in one.layers] == [0, 1, 1, 3]
    other = measured(own_job(tmp_path, "[first, Mix, lambda: Mix(), last]"))
    assert [layer.measured_as for layer in other.layers] == [0, 1, 2, 3]
    tapering = "[first, lambda: nn.Linear(16, 12), N, N, lambda: nn.Linear(12, 256)]"
    norm = tapering.replace("N", "nn.GELU")
    assert [layer.measured_as for layer in measured(own_job(tmp_path, norm)).layers] == [
        *(0, 1, 2, 2, 4)
    ]


def test_one_function_with_inputs_of_two_shapes_is_run_for_each(tmp_path: Path) -> None:
    layers = "[first, nn.GELU, narrow, nn.GELU, lambda: nn.Linear(12, 256)]"
    found = measured(own_job(tmp_path, layers))
    assert [layer.measured_as for layer in found.layers] == [0, 1, 2, 3, 4]
    assert found.layers[1].output_bytes > found.layers[3].output_bytes
    assert found.layers[1].parameters == 0


def test_too_little_time_is_said_with_the_layer_and_a_remedy(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        measured(tiny_job(tmp_path), replace(ASKED, limit_s=0.0))
    said = str(caught.value)
    assert "layer 0 (Embedding) of 4 was timed 0 times when 0 s were over" in said
    assert "give --seconds" in said


@pytest.mark.parametrize("own", [False, True])
def test_what_does_not_fit_is_refused_before_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool
) -> None:
    job = own_job(tmp_path, "[first, Mix, last]") if own else tiny_job(tmp_path)
    monkeypatch.setattr(room, "_room_bytes", lambda _device: 30_000)
    with pytest.raises(
        InputError, match=r"layer 0 \(\w+\) needs .* 29\.3 KiB are free on this machine"
    ):
        measured(job)


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ("raise ValueError('no\\n way')", "fails: ValueError: no way; correct it"),
        ("return [x]", "(Mix) returns list, neither a tensor nor a tuple; return one tensor"),
        ("raise MemoryError", "does not fit into the memory of this machine's CPU"),
        ("x = x.new_empty(1 << 60)", "does not fit into the memory of this machine's CPU"),
    ],
)
def test_a_layer_that_fails_is_named(tmp_path: Path, body: str, word: str) -> None:
    with pytest.raises(InputError) as caught:
        measured(own_job(tmp_path, "[first, Mix, last]", body))
    assert "layer 1 (Mix)" in str(caught.value)
    assert word in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA GPU")
def test_without_a_gpu_its_measuring_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"torch .*GPU.*; leave --device out"):
        measured(tiny_job(tmp_path), replace(ASKED, device="cuda"))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA GPU")
def test_a_gpu_is_measured(tmp_path: Path) -> None:
    job = tiny_job(tmp_path)
    on_gpu, on_cpu = measured(job, replace(ASKED, device="cuda")), measured(job)
    assert on_gpu.device == torch.cuda.get_device_name()
    for layer, other in zip(on_gpu.layers, on_cpu.layers, strict=True):
        assert layer.forward_s > 0
        assert (layer.parameters, layer.output_bytes) == (other.parameters, other.output_bytes)


def test_the_scatter_is_the_middle_half_over_the_median() -> None:
    assert scatter([4.0]) == 0.0
    assert scatter([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert scatter([0.0, 0.0]) == 0.0


def test_the_command(tmp_path: Path) -> None:
    job = own_job(tmp_path, "[first, Mix, last]", "print('noise')")
    done = ran("bamboo.runtime.check.profile", told=_request(job))
    assert done.returncode == 0, done.stderr
    found = Profile.from_json(json.loads(done.stdout)["profile"])
    assert [layer.name for layer in found.layers] == ["Embedding", "Mix", "Linear"]
    steps = [line for line in done.stderr.splitlines() if line.startswith('{"step"')]
    last = json.loads(steps[-1])
    assert last["step"] == last["steps"]
    assert "noise" in done.stderr


def test_the_command_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    job = own_job(tmp_path, "[first, Mix, last]")
    (tmp_path / "text.txt").write_bytes(b"")
    monkeypatch.setattr("sys.stdin", io.StringIO(_request(job)))
    assert main([]) == 2
    assert "0 bytes hold no window" in json.loads(capfd.readouterr().out)["error"]


def _request(job: JobConfig) -> str:
    request = {"job": job_to_json(job), "device": "cpu", "limit_s": 60.0}
    return json.dumps(request | {"machine": "here", "seen": "2026-11-21"})
