"""Real runs on this machine's local cloud: launched, verified, and read afterwards.

Rule: a run lives in a folder that is given, and nothing of it is left over when its command has
ended or its time is over.
"""

import itertools
import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.children import SAID, ChildFailed, Deadline, run
from benchmarks.gpu_check.jobs import LLAMA, Job

HERE = Path(__file__).parent
COMMAND_S = 180.0
"""A command may take so long, so that one that hangs does not take the time of all lines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where jobs and runs of a part lie, and when the part ends."""

    folder: Path
    deadline: Deadline

    @property
    def home(self) -> Path:
        """What `BAMBOO_HOME` is for its runs."""
        return self.folder / "runs"

    def write(self, job: Job, name: str) -> Path:
        """The file of a job, with the model that it names next to it."""
        self.folder.mkdir(exist_ok=True, parents=True)
        path = self.folder / f"{name}.toml"
        path.write_text(job.text())
        if job.model.get("model") == LLAMA:
            shutil.copy(HERE / "llama_shape.py", self.folder)
        return path

    def command(
        self, *words: str, most_s: float = COMMAND_S, more: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        """What a command of Bamboo answers with --json. Raises ChildFailed."""
        line = [sys.executable, "-P", "-m", "bamboo.loading", "cli.main", *words, "--json"]
        surroundings = {"BAMBOO_HOME": str(self.home), **(more or {})}
        done = run(line, timeout_s=min(most_s, self.deadline.left_s()), more=surroundings)
        if done.status not in (0, VERIFY_DIFFERS):
            raise ChildFailed(f"bamboo {words[0]}: {done.complaint()}")
        return done.answer()


VERIFY_DIFFERS = 5
"""The exit status of `bamboo verify` for a run that is not equal."""


def launched(place: Place, job: Job, name: str, **more: str) -> dict[str, Any]:
    """The receipt of a run of this job. Raises ChildFailed, with the last words of its workers,
    unless it ended done."""
    try:
        body = place.command("launch", str(place.write(job, name)), "--run", name, more=more)
    except ChildFailed as error:
        raise ChildFailed(f"{error}{last_words(place, name)}") from error
    if body["outcome"] != "done":
        said = f"the run ended {body['outcome']}: {body['sentence']}"
        raise ChildFailed(f"{said}{last_words(place, name)}")
    return body


def logs(place: Place, name: str) -> list[str]:
    """What the workers of a run wrote, each as one text."""
    files = sorted((place.home / name / "logs").glob("i-*.log"))
    return [file.read_text(errors="replace") for file in files]


def last_words(place: Place, name: str) -> str:
    """The last line of the first worker that ended with an error; "" without one."""
    for text in logs(place, name):
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        if lines and ("Error" in lines[-1] or "error" in lines[-1]):
            return f"; a worker said last: {lines[-1][:SAID]}"
    return ""


def verified(place: Place, name: str) -> tuple[bool, str]:
    """Whether a run is equal to a calm one; if not, the first difference."""
    body = place.command("verify", name)
    first = body["first_difference"] or {}
    said = f"step {first.get('step')}, {first.get('tensor')}" if first else ""
    return bool(body["equal"]), said


def pauses_s(receipt: Mapping[str, Any]) -> list[float]:
    """Seconds from the end of the victim's connection to the first operation of the lost stage, for
    each loss without a notice that a shadow took over."""
    out = []
    for loss in receipt["preemptions"]:
        if loss["noticed"] or loss["pause_s"] is None:
            continue
        parts = loss["parts_s"]
        whole_s = sum(parts.values()) if parts else loss["pause_s"]
        out.append(whole_s - parts.get("disconnect", 0.0))
    return out


def step_times_s(place: Place, name: str, skipped: int) -> list[float]:
    """Seconds between the ends of neighbouring steps of a run, without the first few."""
    lines = (place.home / name / "metrics.jsonl").read_text().splitlines()
    stamps = [float(json.loads(line)["t"]) for line in lines]
    return [b - a for a, b in itertools.pairwise(stamps)][skipped:]
