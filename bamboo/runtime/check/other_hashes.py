"""`python -m bamboo.runtime.check.other_hashes`: a job's own data, in a process with other hashes.

Standard input: one JSON object with `job`, the job as JSON text, and `asked`, a list of [step,
microbatch]. Standard output: one JSON object with `found`, a checksum of each, and `evaluation`,
what own data of [eval] are; or {"error": line} and exit code 2.

Every process of a run has the same hash seed, but another release of Python has other hashes, and
so has a program of the user's own. What depends on the order of a set, or on `hash`, is no contents
that a digest could name.
"""

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bamboo.config.load import job_from_json, job_to_json
from bamboo.config.tree import JobConfig
from bamboo.data.dataset import Dataset, load_data
from bamboo.data.evaluation import load_eval
from bamboo.errors import BambooError, InputError
from bamboo.far_tokens import through
from bamboo.loading import interpreter, steady_environment
from bamboo.models import build_model
from bamboo.models.build import USER_ERRORS
from bamboo.new_files import open_to_append, write_whole
from bamboo.runtime.check.eval_contract import check_facts, own_facts
from bamboo.runtime.check.one_layer import checksum
from bamboo.runtime.check.stdout_answer import one_answer
from bamboo.runtime.step.numerics import prepare
from bamboo.user_code.traces import placed_line_of

MODULE = "bamboo.runtime.check.other_hashes"
SEED = "1"
"""Another one than `steady_environment` has."""
WHERE = "where text has other hashes, as in another release of Python"
SORTED = "sort every set of which the order counts, and take hashlib in place of hash()"


class OtherHashes:
    """The process as its asker sees it."""

    def __init__(self, job: JobConfig, asked: Sequence[tuple[int, int]], folder: Path) -> None:
        self._job = job
        self._asked = asked
        request = folder / "request"
        self._answer = folder / "answer"
        write_whole(request, json.dumps({"job": job_to_json(job), "asked": asked}).encode())
        # Files: a process that the user's code forks would keep a pipe open.
        with request.open("rb") as asking, open_to_append(self._answer) as answering:
            self._process = subprocess.Popen(
                interpreter(*through(MODULE)),
                stdin=asking,
                stdout=answering,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={**steady_environment(), "PYTHONHASHSEED": SEED},
            )

    def compare(self, data: Dataset, evaluation: Mapping[str, str]) -> None:
        """Raises InputError where the data differ there from those here; `evaluation`: see
        `own_facts`."""
        self._process.wait()
        try:
            body = json.loads(self._answer.read_bytes())
        except ValueError as error:
            raise BambooError(
                "the process that makes the data with other hashes ended without an answer; "
                "perhaps memory ran out: take smaller data, or a machine with more"
            ) from error
        if "error" in body:
            raise InputError(str(body["error"]))
        for (step, index), here, there in zip(
            self._asked, _found(data, self._asked), body["found"], strict=True
        ):
            if here != there:
                raise InputError(
                    f"{self._job.file}: the data give other samples for microbatch {index} of step "
                    f"{step} {WHERE}: {SORTED}"
                )
        check_facts(self._job, evaluation, body["evaluation"], WHERE, SORTED)

    def end(self) -> None:
        """End the process; safe when it has ended."""
        self._process.kill()
        self._process.wait()


@contextmanager
def other_hashes(
    job: JobConfig, asked: Sequence[tuple[int, int]], room: Path | None
) -> Iterator[OtherHashes]:
    """Make these microbatches, given as (step, microbatch), of a job's own data with other hashes
    meanwhile. `room`: a folder to write into, which the asker removes."""
    with TemporaryDirectory(prefix="bamboo-hashes-", dir=room) as folder:
        other = OtherHashes(job, asked, Path(folder))
        try:
            yield other
        finally:
            other.end()


def _found(data: Dataset, asked: Sequence[tuple[int, int]]) -> list[list[int]]:
    """For each microbatch the checksums of inputs and targets, and what its samples weigh."""
    found = []
    for step, index in asked:
        inputs, targets = data.microbatch(step, index)
        found.append([checksum(*inputs), checksum(*targets), data.count_of(step, index)])
    return found


def main(_: list[str]) -> int:
    """The command; see the top of the file."""
    with one_answer() as answer:
        request = json.loads(sys.stdin.read())
        job = job_from_json(request["job"])
        try:
            prepare(job.cluster)
            workload = build_model(job, whole=True)
            asked = request["asked"]
            found = _found(load_data(job, own=workload.data), asked) if asked else []
            evaluated = load_eval(job, workload.data, workload.eval_data)
            answer({"found": found, "evaluation": own_facts(job, workload, evaluated)})
        except InputError as error:
            answer({"error": str(error)})
            return error.exit_code
        except USER_ERRORS as error:
            answer(
                {
                    "error": f"{job.file}: the data fail {WHERE}: {placed_line_of(error)}; sort "
                    "every set of which the order counts"
                }
            )
            return InputError.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
