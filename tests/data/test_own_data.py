"""Data of a job's own: keys, counts, and what is refused of it before a step is taken."""

from pathlib import Path

import pytest
import torch

from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset, check_digest, load_data
from bamboo.errors import InputError
from bamboo.models import build_layer, build_model, named_parameters
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.optim.optimizer import Optimizer
from bamboo.runtime.step.numerics import prepare
from bamboo.topology.keys import keyed_seed
from tests.data.own_data import SOURCE, own_job
from tests.jobs import tiny_job


def _data(job: JobConfig) -> Dataset:
    return load_data(job, own=build_model(job).data)


class Counting:
    """Samples that weigh what `weights` says, and note each question."""

    samples, digest, unit = 3, "d", "sample"

    def __init__(self, *weights: object) -> None:
        self.weights = weights
        self.asked: list[tuple[int, int]] = []
        self.keys: list[int] = []

    def batch(self, indices: list[int], keys: list[int]) -> tuple[tuple[torch.Tensor, ...], ...]:
        self.keys += keys
        return (torch.tensor(indices),), ()

    def count(self, index: int, key: int) -> object:
        self.asked.append((index, key))
        return self.weights[index]


def _counted(*weights: object) -> tuple[Dataset, Counting]:
    data = Counting(*weights)
    return Dataset(data, batch=4, microbatch=2, seed=7), data  # type: ignore[arg-type]


def test_a_sample_s_key_follows_from_seed_data_epoch_and_sample() -> None:
    dataset, data = _counted(1, 1, 1)
    for step in range(6):
        for m in range(2):
            dataset.microbatch(step, m)
    samples = [i for s in range(6) for m in range(2) for i in dataset.sample_indices(s, m)]
    expected = [keyed_seed(7, "sample", place // 3, i) for place, i in enumerate(samples)]
    assert data.keys == expected
    assert len(set(expected)) == 24


def test_a_step_counts_its_samples_once_however_often_it_is_asked() -> None:
    dataset, data = _counted(1, 5, 0)
    for step in (0, 1, 0, 1):
        samples = [i for m in range(2) for i in dataset.sample_indices(step, m)]
        assert dataset.count(step) == sum((1, 5, 0)[i] for i in samples)
    assert len(data.asked) == 8
    dataset.microbatch(0, 0)
    dataset.microbatch(0, 1)
    assert [key for _, key in data.asked[:4]] == data.keys


def test_without_a_count_each_sample_counts_1_and_text_is_counted_without_a_call(
    tmp_path: Path,
) -> None:
    job = own_job(tmp_path, SOURCE.replace("def count", "def other"))
    assert _data(job).count(3) == job.train.batch
    text = tiny_job(tmp_path)
    assert load_data(text).count(3) == text.train.batch * text.model.context


class Refilled(Counting):
    """Gives the same memory for each microbatch, with other numbers, and needs a gradient."""

    memory = torch.zeros(8)[1:]

    def batch(self, indices: list[int], keys: list[int]) -> tuple[tuple[torch.Tensor, ...], ...]:
        self.memory[:2] = torch.tensor(indices)
        return (self.memory.detach().requires_grad_(),), (self.memory[:2],)


def test_a_microbatch_has_memory_of_its_own() -> None:
    dataset = Dataset(Refilled(1), batch=4, microbatch=2, seed=7)  # type: ignore[arg-type]
    (first,), (labels,) = dataset.microbatch(0, 0)
    dataset.microbatch(0, 1)
    assert first[:2].tolist() == labels.tolist() == dataset.sample_indices(0, 0)
    assert not first.requires_grad
    assert first.data_ptr() % 64 == labels.data_ptr() % 64 == 0


@pytest.mark.parametrize(
    ("odd", "says"),
    [
        (torch.ones(2).to_sparse(), r"inputs that are torch.sparse_coo on cpu; return dense"),
        (torch.ones(2, device="meta"), r"inputs that are torch.strided on meta; return dense"),
    ],
)
def test_data_that_are_not_dense_on_the_cpu_are_refused(odd: torch.Tensor, says: str) -> None:
    dataset, data = _counted(1)
    data.batch = lambda indices, keys: ((odd,), ())  # type: ignore[method-assign]
    with pytest.raises(InputError, match=says):
        dataset.microbatch(0, 0)


@pytest.mark.parametrize("weight", [-1, 1.5, None])
def test_a_weight_that_is_no_whole_number_from_0_is_refused(weight: object) -> None:
    dataset, _ = _counted(weight, weight, weight)
    with pytest.raises(InputError, match=f"step 2: the data counts {weight} for sample"):
        dataset.count(2)


def test_a_step_that_counts_nothing_is_refused() -> None:
    dataset, _ = _counted(0, 0, 0)
    with pytest.raises(InputError, match="step 5: the data counts 0 for all of its samples"):
        dataset.count(5)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (("samples, unit, digest = 21", "samples, unit, digest = 0"), "samples = 0"),
        (('"rows-1"', '""'), "digest = ''"),
        (('"word"', "3"), "unit = 3"),
        (("def batch", "def other"), "batch = None"),
        (("def count", "count = 0\n    def other"), "count = 0"),
    ],
)
def test_data_without_its_parts_is_refused(
    tmp_path: Path, change: tuple[str, str], found: str
) -> None:
    with pytest.raises(InputError, match=rf"model\.model = .*: its data \(Rows\) has {found}; "):
        _data(own_job(tmp_path, SOURCE.replace(*change)))


@pytest.mark.parametrize("key", ["model.context=64", "data.max_bytes=10"])
def test_keys_of_a_text_are_refused_beside_own_data(tmp_path: Path, key: str) -> None:
    name, _, value = key.partition("=")
    with pytest.raises(InputError, match=rf"{name} = {value}: is of a text, and mine.py:build"):
        _data(own_job(tmp_path, overrides=[key]))


def test_another_digest_than_the_run_s_is_refused(tmp_path: Path) -> None:
    job = own_job(tmp_path)
    check_digest(job, _data(job), "rows-1")
    with pytest.raises(InputError, match=r"its data has the digest rows-1, .* made for rows-2"):
        check_digest(job, _data(job), "rows-2")


def _ordinary(job: JobConfig, *, by_batch: bool) -> list[float]:
    """Full batches, torch's own optimizer and clipping."""
    workload, data = build_model(job), _data(job)
    layers = [(i, build_layer(workload, i, job.train.seed)) for i in range(3)]
    params = [p for _, p in named_parameters(layers)]
    groups = [
        {"params": [p for p in params if (p.dim() >= 2) is wide], "weight_decay": 0.1 * wide}
        for wide in (True, False)
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), foreach=False)
    losses = []
    for step in range(job.train.steps):
        samples = [i for m in range(4) for i in data.sample_indices(step, m)]
        (words, there), (labels,) = data.data.batch(samples, [0] * len(samples))
        x = (words, there)
        for _, layer in layers:
            x = layer(x)
        output: torch.Tensor = x  # type: ignore[assignment]
        total = workload.loss(output, labels)
        loss = total / (len(samples) if by_batch else int((labels >= 0).sum()))
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(params, job.train.clip_norm)
        for group in optimizer.param_groups:
            group["lr"] = Optimizer(job.train).learning_rate(step)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_masks_and_unequal_counts_equal_full_batches_and_the_batch_size_does_not(
    tmp_path: Path,
) -> None:
    job = own_job(tmp_path)
    prepare(job.cluster)
    workload = build_model(job)
    calm = CalmRun(job, workload, load_data(job, own=workload.data))
    losses = [calm.step() for _ in range(job.train.steps)]
    assert losses == pytest.approx(_ordinary(job, by_batch=False), rel=1e-5)
    assert losses != pytest.approx(_ordinary(job, by_batch=True), rel=1e-2)


def test_the_guides_data_train_the_gpt(tmp_path: Path) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "your-own-model.md").read_text(encoding="utf-8")
    block = guide.partition('source = "rows.py:data"\n')[2].partition("    import torch\n")[2]
    lines = ["import torch"]
    for line in block.splitlines():
        if line.strip() and not line.startswith("    "):
            break
        lines.append(line[4:])
    (tmp_path / "rows.py").write_text("\n".join(lines), encoding="utf-8")
    sets = ['data.source="rows.py:data"', "data.path=", "model.context=32", "train.steps=30"]
    job = tiny_job(tmp_path, sets)
    prepare(job.cluster)
    workload = build_model(job)
    data = load_data(job, own=workload.data)
    assert data.described == "1,000 samples of digest 'counting up, 1000 times'"
    calm = CalmRun(job, workload, data)
    losses = [calm.step() for _ in range(30)]
    assert losses[-1] < losses[0] - 0.5


def test_data_of_ones_own_come_from_one_place(tmp_path: Path) -> None:
    source = f"{SOURCE}\ndef data(job):\n    return Rows()\n"
    for value, line in (
        ("mine.py:data", "data.source = .* the model has its own data, too; leave out one of them"),
        ("rows.py", 'data.source = .*names no source; write "python-stdlib" or "file.py:data"'),
        ("none.py:data", "data.source = .*there is no file"),
    ):
        with pytest.raises(InputError, match=line):
            build_model(own_job(tmp_path, source, [f'data.source="{value}"']))
