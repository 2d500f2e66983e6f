"""`bamboo profile`: what is kept under which name, when it is measured again, and what is shown."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo.config.catalogue import load_gpus
from bamboo.config.load import load_job
from bamboo.planner.profiles.profiled import LayerProfile, Profile
from bamboo.study import profiling
from bamboo.study.profiling import Found, Wanted, content_key, profile_job
from cli import main
from cli.views.profile import profile_body, profile_text
from tests.jobs import tiny_job
from tests.planner.profiles.made_up import layer, profile

PLACE = {"device": "cpu", "machine": "m", "torch_version": "2"}


class Measuring:
    """Stands for the process that measures; remembers what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []
        self.layers: tuple[LayerProfile, ...] = profile().layers

    def __call__(self, _job: object, *, told: Callable[[int, int], None], **asked: Any) -> Profile:
        self.asked.append(asked)
        told(1, 2)
        return replace(profile(*self.layers), limit_s=asked["limit_s"], machine=asked["machine"])


@pytest.fixture
def measuring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Measuring:
    tiny_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    one = Measuring()
    monkeypatch.setattr("bamboo.wiring.run_profile", one)
    return one


@contextmanager
def silent() -> Iterator[Callable[[int, int], None]]:
    yield lambda _done, _of_all: None


def find(wanted: Wanted | None = None, *overrides: str) -> Found:
    return profile_job(Path("job.toml"), wanted or Wanted(), overrides=overrides, progress=silent)


def test_what_was_measured_is_kept(measuring: Measuring) -> None:
    first, second = find(), find()
    assert len(measuring.asked) == 1
    assert (first.kept, second.kept) == (False, True)
    assert second.profile == first.profile == Profile.from_json(first.path.read_text())
    assert first.microbatches == 4
    assert [path.name for path in first.path.parent.iterdir()] == [first.path.name]


@pytest.mark.parametrize(
    ("wanted", "overrides"),
    [
        (Wanted(fresh=True), ()),
        (Wanted(limit_s=61.0), ()),
        (Wanted(device="cuda"), ()),
        (Wanted(), ("train.microbatch=4",)),
        (Wanted(), ("model.dropout=0.3",)),
        (Wanted(), ("cluster.threads=2",)),
    ],
)
def test_what_is_another_profile_is_measured(
    measuring: Measuring, wanted: Wanted, overrides: tuple[str, ...]
) -> None:
    find()
    found = find(wanted, *overrides)
    assert not found.kept
    assert len(measuring.asked) == 2
    assert find(replace(wanted, fresh=False), *overrides).kept


@pytest.mark.parametrize("text", ["", "{", "[]", '{"schema_version": 9}', "\udcff"])
def test_a_damaged_profile_is_measured_again_and_said(measuring: Measuring, text: str) -> None:
    path = find().path
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    again = find()
    assert not again.kept
    assert [str(path) in note for note in again.notes] == [True]
    assert "was measured again" in again.notes[0]
    assert find().kept
    assert find().notes == ()


def test_a_profile_that_cannot_be_kept_is_shown_all_the_same(measuring: Measuring) -> None:
    Path("runs").write_text("no folder")
    found = find()
    assert found.profile.layers == measuring.layers
    assert "the profile was not kept" in found.notes[0]
    assert "the profile was not kept" in profile_text(found)


def test_a_virtual_device_is_not_what_is_measured(measuring: Measuring) -> None:
    (note,) = find(None, "cluster.device=virtual").notes
    assert "a virtual device, whose figures are given" in note


def test_a_gpu_is_modelled_from_what_is_kept(measuring: Measuring) -> None:
    find()
    found = find(Wanted(gpu="t4"))
    assert len(measuring.asked) == 1
    assert found.profile.modelled
    assert found.profile.device == "T4"
    assert not Profile.from_json(found.path.read_text()).modelled


def test_a_gpu_is_modelled_by_formula_where_nothing_is_kept(measuring: Measuring) -> None:
    found = find(Wanted(gpu="t4"), "model.layers=80", "model.width=2048")
    assert measuring.asked == []
    assert len(found.profile.layers) == 82
    assert found.profile.source.endswith("for T4 by published figures, from the model's shape")
    assert not found.path.exists()
    text = profile_text(found)
    assert "nothing was built or timed (--fresh counts it here)" in " ".join(text.split())
    assert "were run" not in text
    find(Wanted(gpu="t4", fresh=True))
    assert len(measuring.asked) == 1


def test_the_name_says_all_that_figures_depend_on_and_no_more(tmp_path: Path) -> None:
    file = Path(tiny_job(tmp_path).file)

    def key(*overrides: str, **place: str) -> str:
        return content_key(load_job(file, overrides), **(PLACE | place))

    same = [key(), key("cluster.redundancy=eager"), key("cloud.market=on-demand")]
    same += [key("checkpoint.every_steps=3"), key("cluster.virtual_link_gbps=2")]
    other = [key(device="cuda"), key(machine="n"), key(torch_version="3")]
    for override in (
        *("model.layers=3", "model.width=32", "model.heads=4", "model.context=16"),
        *("model.vocabulary=300", "model.dropout=0.5", "model.tied=true", "train.batch=16"),
        *("train.microbatch=4", "train.clip_norm=0", "cluster.threads=2", "train.seed=2"),
    ):
        other.append(key(override))
    assert set(same) == {key()}
    assert len({key(), *other}) == 1 + len(other)


def test_a_users_model_counts_by_what_its_file_says(measuring: Measuring) -> None:
    Path("mine.py").write_text("one")
    job = load_job("job.toml", ["model.model=mine.py:build"])
    before = content_key(job, **PLACE)
    Path("mine.py").write_text("two")
    assert content_key(job, **PLACE) != before


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["none.toml"], "No such file or directory; name a job file"),
        (["job.toml", "--gpu", "GTX"], "GPU 'GTX' is not in the table"),
        (["job.toml", "--gpu", "T4", "--device", "cuda"], "leave one of them out"),
        (["job.toml", "--seconds", "0"], "--seconds 0 is no time to measure in; give 1 to"),
        (["job.toml", "--seconds", "nan"], "--seconds nan is no time"),
        (["job.toml", "--set", "train.microbatch=3"], "train.batch"),
        (["job.toml", "--set", "model.model=no.py:build"], "correct the path"),
    ],
)
def test_wrong_words_are_one_line_before_anything_is_measured(
    measuring: Measuring, arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["profile", *arguments]) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert word in said
    assert said.count("\n") == 1
    assert measuring.asked == []


def test_a_layer_too_large_for_the_gpu(
    measuring: Measuring, capsys: pytest.CaptureFixture[str]
) -> None:
    measuring.layers = (
        layer(0),
        replace(layer(1), parameter_bytes=5 * 2**30, moment_bytes=10 * 2**30),
    )
    assert main.run(["profile", "job.toml", "--gpu", "T4", "--fresh"]) == 2
    said = capsys.readouterr().err
    assert "layer 1 (Block) needs 20.0 GiB alone" in said
    assert "or one of L4" in said


def test_json_is_one_object_whose_profile_a_planner_reads(
    measuring: Measuring, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["profile", "job.toml", "--json"]) == 0
    output = capsys.readouterr()
    assert output.err == ""
    body = json.loads(output.out)
    assert body["schema_version"] == 1
    read = Profile.from_json(json.dumps(body["profile"]))
    assert body["stash_bytes"] == [read.stash_bytes(i) for i in range(4)] == [100, 300, 300, 300]
    assert body["totals"]["forward_s"] == pytest.approx(sum(x.forward_s for x in read.layers))
    assert body["totals"]["parameter_bytes"] == 4000 * (1 + 2 + 2 + 4)
    assert body["microbatches_of_a_step"] == 4
    assert not body["from_cache"]
    assert Path(body["path"]).exists()


def found(one: Profile, **changes: Any) -> Found:
    whole = Found(
        profile=one,
        microbatches=8,
        precision="fp32",
        kept=False,
        path=Path("p.json"),
        gpu=None,
        notes=(),
    )
    return replace(whole, **changes)


def test_the_text() -> None:
    assert profile_text(found(profile())).splitlines()[:10] == [
        "job.toml: 4 layers, 9,000 parameters; a microbatch of 2 samples, 256 tokens",
        "  measured on this machine's CPU (a processor, 2 cores), 1 thread, torch 2.13.0; "
        "medians of at least",
        "    40 repetitions",
        "  layer              forward  backward  share  optimizer  parameters  share  activations"
        "  stash",
        "  0       Embedding   1.0 ms    2.0 ms    11%     400 µs     3.9 KiB    11%        700 B"
        "  100 B",
        "  1 to 2  Block       2.0 ms    4.0 ms    22%     400 µs     7.8 KiB    22%      1.4 KiB"
        "  300 B",
        "  3       Block       4.0 ms    8.0 ms    44%     400 µs    15.6 KiB    44%      2.7 KiB"
        "  300 B",
        "  all                 9.0 ms     18 ms            1.6 ms    35.2 KiB             6.2 KiB",
        "  activations: held from the forward to the backward of a microbatch; stash: its output "
        "and its",
        "    input's gradient, of a stage that is this layer alone, in each of at most 2 steps; "
        "optimizer:",
    ]


def test_what_is_modelled_says_so_and_from_what() -> None:
    table = load_gpus()
    gpu = table.find("T4")
    text = profile_text(found(table.modelled(profile(), gpu), gpu=gpu, kept=True))
    assert "modelled for T4 by published figures, from work counted on a CPU" in text
    assert "nothing was timed" in " ".join(text.split())
    assert f"the table of {table.seen}" in text
    assert "repetition" not in text


def test_doubts_are_said() -> None:
    calm = profile_text(found(profile()))
    assert "scatter" not in calm
    assert "at work already" not in calm
    assert "frozen" not in calm
    assert "that are trained, 2.0 KiB frozen or buffers" in profile_text(
        found(profile(replace(layer(0), frozen_bytes=2048)))
    )
    noisy = replace(layer(0), scatter=0.31)
    text = profile_text(found(replace(profile(noisy), load=1.5)))
    assert "half of them lie within 31% of the median" in text
    assert "1.5 processes for each core" in text
    assert "--fresh" in text


def test_a_model_of_no_time_and_no_parameters_has_a_text() -> None:
    none = replace(layer(0), forward_s=0.0, backward_s=0.0, parameters=0, parameter_bytes=0)
    assert "0%" in profile_text(found(profile(none)))
    assert profile_body(found(profile(none)))["totals"]["parameters"] == 0


def test_the_machine_is_named_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpus, gpus = tmp_path / "cpuinfo", tmp_path / "gpus"
    cpus.write_text("processor\t: 0\nmodel name\t: A Processor\nmodel name\t: Another\n")
    (gpus / "0000:01").mkdir(parents=True)
    (gpus / "0000:01" / "information").write_text("Model: \t\t A GPU\nIRQ: 3\n")
    monkeypatch.setattr(profiling, "CPUS", cpus)
    monkeypatch.setattr(profiling, "GPUS", gpus)
    monkeypatch.setattr("os.cpu_count", lambda: 6)
    assert profiling.this_machine(with_gpus=False) == "A Processor, 6 cores"
    assert profiling.this_machine(with_gpus=True) == "A Processor, 6 cores, A GPU"
    monkeypatch.setattr(profiling, "CPUS", tmp_path / "none")
    assert profiling.this_machine(with_gpus=False).endswith(", 6 cores")
