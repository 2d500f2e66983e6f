"""`python -m bamboo.runtime.check.verify RUN_DIR [--brought]`: is the run, bit for bit, equal to a
calm one?

It trains the run's semantics with the calm reference and compares every loss, what the model
measures beside it, and the SHA-256 of every parameter and moment. Standard output: one JSON object
{equal, first_difference, ...}; standard error: one JSON line {step, steps, loss} per step. Exit
codes: 0 equal, 5 different, 2 not comparable. With --brought the folder is one of
`run_files.fetch_checked`, on a rented machine.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bamboo.checkpoint.final import read_final, tensor_sha256
from bamboo.checkpoint.initial import all_layers
from bamboo.checkpoint.run_files import brought_data, brought_eval, brought_final
from bamboo.config.load import job_from_json
from bamboo.config.resolve import kept_in, same_semantics
from bamboo.config.tree import JobConfig
from bamboo.coord.attested import known_in
from bamboo.core.numerics import differing, facts_of, named
from bamboo.core.state import Fact
from bamboo.data.dataset import Dataset, load_data
from bamboo.errors import InputError, NoDevice
from bamboo.kept_weights import INIT_FOLDER
from bamboo.models import Workload, build_model
from bamboo.named_files import read_own
from bamboo.runtime.check.compared import Recorded, compare, difference, recorded_of
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.check.stdout_answer import answer_equal, tell_progress
from bamboo.runtime.check.verify_evals import Evaluations
from bamboo.runtime.step.numerics import local_numerics, prepare
from bamboo.topology.strategy import Semantics, Strategy
from bamboo.user_code.bundle import check_identity
from bamboo.user_code.wheels import WHEELS_FOLDER, install_wheels, use_installed

BROUGHT = "--brought"
Progress = Callable[[int, int, float], None]
"""(completed steps, steps, loss)"""


def verify(run: Path, progress: Progress, *, brought: bool = False) -> dict[str, Any]:
    """Compare the run in this folder with a calm one; see the top of the file.

    The first difference is the first loss that differs (tensor "loss"; the calm run stops there) or
    metric (tensor "metric NAME") of a step, then of the evaluation after it ("evaluation loss"),
    otherwise the first tensor that differs, in name order, after the last step. Raises InputError
    when the run has not ended in order, or this machine cannot repeat its bits.
    """
    job = job_of_run(run)
    final = brought_final(run) if brought else read_final(run / "final")
    text = read_text(run / "metrics.jsonl")
    recorded = recorded_of(text)
    prepare(job.cluster)
    fetched = brought and not job.data.in_image and job.reads_text
    if brought and job.wheels:
        install_wheels(run / WHEELS_FOLDER, job.wheels, run / job.wheels)
        use_installed(run / job.wheels)
    ours, workload, data = repeatable(run, job, brought_data(run) if fetched else None)
    calm = calm_run(run, job, workload, data)
    evaluations = Evaluations(job, workload, text, brought_eval(run) if brought else None)
    result: dict[str, Any] = {
        "schema_version": 1,
        "equal": True,
        "first_difference": None,
        "semantic_hash": ours.hash(),
        "segments": ours.listed(final.step),
        "steps": final.step,
        "metrics": [],
        "evaluations": 0,
        "tensors": len(final.tensors),
        "damaged_files": list(final.damaged),
    }
    for step in range(final.step):
        ours_now = step_of(calm)
        progress(step + 1, final.step, ours_now.loss)
        differing = compare(step, ours_now, recorded.get(step, []))
        result["metrics"] = sorted(ours_now.metrics)
        if differing := differing or evaluations.compare(calm, last=final.step):
            return result | differing
        result["evaluations"] = evaluations.count
    return result | compare_tensors(calm, final.tensors)


def calm_run(run: Path, job: JobConfig, workload: Workload, data: Dataset) -> CalmRun:
    """The calm reference of the run in this folder, before its first step. Raises InputError when
    the weights that the run began with are missing."""
    calm = CalmRun(job, workload, data)
    if not job.train.init:
        return calm
    mine, folder = calm.tensors(), run / INIT_FOLDER
    for held in all_layers(folder, digest=job.weights):
        for name, tensor in held.items():
            if name not in mine or mine[name].shape != tensor.shape:
                raise InputError(f"{folder}: {name} is not of the run's model; put it back")
        calm.load(held, 0)
    return calm


def step_of(calm: CalmRun) -> Recorded:
    """Take the calm run's next step."""
    return Recorded(loss=calm.step(), metrics=calm.metrics.take())


def job_of_run(run: Path) -> JobConfig:
    """The resolved job of the run in this folder, with the code that is kept with the run. Raises
    InputError when it cannot be read."""
    job = job_from_json(read_text(run / "resolved.json"))
    return kept_in(run, job)


def compare_tensors(calm: CalmRun, found: Mapping[str, str]) -> dict[str, Any]:
    """The first tensor of the run, given as {name: SHA-256}, that differs from the calm run's
    present one, as fields of the result; {} when all are equal."""
    expected = {name: tensor_sha256(t) for name, t in calm.tensors().items()}
    for name in sorted(expected.keys() | found.keys()):
        ours, theirs = expected.get(name), found.get(name)
        if ours != theirs:
            return difference(calm.steps_done - 1, name, ours, theirs)
    return {}


def repeatable(
    run: Path, job: JobConfig, brought: bytearray | Path | None = None
) -> tuple[Semantics, Workload, Dataset]:
    """The run's semantics, what it trains and on what, once it is checked that this machine can
    repeat its bits. `brought`: the data, where they were. Raises InputError with what differs: of
    the training, or of what it was computed with."""
    of_run = semantics_of(run)
    code = check_code(run, job, of_run)
    workload = build_model(job)
    data = load_data(job, brought, own=workload.data)
    here = same_semantics(job, of_run, data_digest=data.digest, code=code)
    try:
        facts = facts_of(local_numerics(job))
    except NoDevice as error:
        raise InputError(
            f"{run}: its nodes computed on a GPU, and {error.problem}; verify it "
            f"on a machine with a GPU of that kind, with the run's release of torch{_or_rent(job)}"
        ) from error
    refuse_other_numerics(run, job, of_run, facts)
    return here, workload, data


def check_code(run: Path, job: JobConfig, of_run: Semantics) -> dict[str, Any] | None:
    """What identifies the code that the run in this folder took along; None where it brings none.
    Raises InputError with the first file or distribution that is another one."""
    if job.code:
        return check_identity(Path(job.code), of_run.model.get("code", {}))
    if job.brings:
        raise InputError(
            f"{run}: has no copy of its own code, so it is of an older release; use that one"
        )
    return None


def semantics_of(run: Path) -> Semantics:
    """The semantics of the run in this folder. Raises InputError when they cannot be read."""
    try:
        return Strategy.from_json(read_text(run / "strategy.json")).semantics
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{run / 'strategy.json'}: {error}; the file is damaged") from error


def refuse_other_numerics(
    run: Path, job: JobConfig, of_run: Semantics, here: Sequence[Fact]
) -> None:
    """Raise InputError, by the facts that differ, where this machine computes other bits than the
    nodes of the run did; also when nobody knows what they computed with."""
    if differ := differing(here, known_in(run, of_run).numerics):
        raise InputError(
            f"this machine cannot repeat the bits of the run: {named(differ, 'here')}; verify on a "
            f"machine like those of the run, with its release of torch{_or_rent(job)}"
        )


def _or_rent(job: JobConfig) -> str:
    """The other way to verify a run of an account; "" for a run on this machine."""
    return "" if job.cloud.provider == "local" else "; or rent one: `bamboo verify RUN --rent`"


def read_text(path: Path) -> str:
    """The text of a file of the run. Raises InputError when it cannot be read."""
    try:
        return read_own(path)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: {error}; name the folder of a run that has ended") from error


def main(arguments: list[str]) -> int:
    """The command; see the top of the file."""
    folder, *options = arguments or [""]
    if not folder or options not in ([], [BROUGHT]):
        sys.stderr.write("usage: python -m bamboo.runtime.check.verify RUN_DIR [--brought]\n")
        return InputError.exit_code

    brought = bool(options)
    return answer_equal(lambda: verify(Path(folder), tell_progress, brought=brought))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
