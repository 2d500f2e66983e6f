"""Going on with a run of which nothing lives any more, from its newest good checkpoint.

Rules. (1) The run stays what it was: its semantics are compared and another hash is refused; grid,
redundancy, cloud and budget may be others. (2) What earlier parts of the run wrote is kept: books
and bills go on, the rest is moved to `parts/<n>/`. (3) A checkpoint that is torn, damaged or of
other semantics is passed over by name.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bamboo.checkpoint.catalogue import Found, newest_good, steps
from bamboo.checkpoint.manifest import Manifest
from bamboo.checkpoint.retention import delete
from bamboo.config.load import job_with
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.topology.strategy import Strategy
from cli import lock, runs, wiring
from cli.launching import Prepared, plan_again
from cli.lock import Lock
from cli.look import job_of
from cli.runs import Part, RunFolder
from cli.terms import save_terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """A run that can go on; nothing was started."""

    prepared: Prepared
    manifest: Manifest | None
    """The checkpoint to go on from; None: there is none, it begins anew."""
    rejected: tuple[str, ...]


def prepare(folder: RunFolder, overrides: Sequence[str]) -> Resumed:
    """Everything that can be found out before a start. Raises InputError when the run is going
    on, is done, or would not be the same run."""
    _refuse_unless_over(folder)
    job = job_with(job_of(folder), overrides)
    strategy = Strategy.from_json(folder.strategy.read_text(encoding="utf-8"))
    prepared = plan_again(folder.id, job)
    ours, theirs = strategy.semantics.hash(), prepared.planned.strategy.semantics.hash()
    if ours != theirs:
        differ = _differences(strategy, prepared.planned.strategy)
        raise InputError(
            f"run {folder.id} would not be the same run: {differ} changed; only what does not "
            "decide its numbers may, such as [cluster] grid and redundancy, [cloud] and [budget]"
        )
    found = _newest(folder, job, ours)
    return Resumed(prepared=prepared, manifest=found.manifest, rejected=found.rejected)


def claim(folder: RunFolder, resumed: Resumed) -> Lock:
    """Be the run's launcher and put the last part's files away. Raises InputError when somebody
    else is faster."""
    held = lock.take(folder)
    if held is None:
        raise InputError(f"run {folder.id} has a launcher by now; `bamboo attach {folder.id}`")
    started_s, before = runs.started_at_s(folder), runs.part_of(folder)
    detached = runs.is_detached(folder)
    if resumed.prepared.job.checkpoint.every_steps:
        step = 0 if resumed.manifest is None else resumed.manifest.step
        objects = wiring.checkpoints_of(folder, resumed.prepared.job)
        for newer in (s for s in steps(objects) if s > step):
            delete(objects, newer)  # passed over: what is written now must not mix with it
    part = _next_part(folder.path / "parts")
    part.mkdir(parents=True)
    for path in (folder.receipt, folder.decisions, folder.endpoint, folder.path / "store"):
        if path.exists():
            path.rename(part / path.name)
    save_terms(
        folder,
        resumed.prepared.job,
        resumed.prepared.planned,
        started_s=started_s,
        detached=detached,
        from_step=0 if resumed.manifest is None else resumed.manifest.step,
        part=Part(number=before.number + 1, started_s=time.time()),
    )
    return held


def _refuse_unless_over(folder: RunFolder) -> None:
    if folder.receipt.exists():
        receipt = folder.read_json(folder.receipt)
        if receipt.get("outcome") == "done":
            raise InputError(f"run {folder.id} is done: there is nothing to resume")
    if not lock.is_free(folder):
        raise InputError(
            f"run {folder.id} is going on; `bamboo attach {folder.id}` shows it, "
            f"`bamboo stop {folder.id}` ends it"
        )
    endpoint = folder.live_endpoint()
    if endpoint is not None and "cloud" in endpoint:
        cloud = wiring.local_cloud_of(folder)
        if cloud.alive():
            raise InputError(
                f"run {folder.id} goes on without a launcher; `bamboo attach {folder.id}`"
            )
        cloud.stop()  # sees that nothing is left of it


def _newest(folder: RunFolder, job: JobConfig, semantic_hash: str) -> Found:
    if not job.checkpoint.every_steps:
        return Found(manifest=None, rejected=("checkpoint.every_steps = 0: none was written",))
    return newest_good(wiring.checkpoints_of(folder, job), semantic_hash=semantic_hash)


def _differences(ours: Strategy, theirs: Strategy) -> str:
    names = [
        name
        for name in type(ours.semantics).__dataclass_fields__
        if getattr(ours.semantics, name) != getattr(theirs.semantics, name)
    ]
    return ", ".join(names)


def _next_part(parts: Path) -> Path:
    taken = {path.name for path in parts.iterdir()} if parts.exists() else set()
    return parts / next(str(n) for n in range(1, len(taken) + 2) if str(n) not in taken)
