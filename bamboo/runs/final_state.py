"""The final state of a run on disk: its manifest, and what is fetched for it from the bucket of an
account.
"""

from collections.abc import Mapping
from typing import Any

from bamboo import wiring
from bamboo.checkpoint.final import read_final, stage_file, write_manifest
from bamboo.config.tree import JobConfig
from bamboo.core.state import Outcome
from bamboo.errors import InputError, StorageUnavailable
from bamboo.runs.progress import Progress
from bamboo.runs.run_folder import RunFolder, job_of, parts_before


def save_manifest(folder: RunFolder, progress: Progress, job: JobConfig) -> str:
    """Write `final/manifest.json` from the stages' files, where the run ended in order. In an
    account they are fetched first.

    Returns "", or a sentence that says why there is no manifest.
    """
    if progress.outcome not in (Outcome.DONE, Outcome.STOPPED, Outcome.BUDGET):
        return "no final state: the run did not end in order"
    if progress.steps_done == 0:
        return "no final state: no step was finished"
    stages, step = progress.state.grid.stages, progress.steps_done
    if _of_the_part_before(folder, step):
        return ""
    return _brought(folder, job, stages=stages, step=step)


def _of_the_part_before(folder: RunFolder, step: int) -> bool:
    """Whether the run ends where the part before it ended, because it was stopped before it took a
    step. Then that part's final state, which the resume put away, is the run's again."""
    before = list(parts_before(folder).values())
    if not before or folder.final.exists() or not before[-1].final_manifest.exists():
        return False
    if before[-1].read_json(before[-1].final_manifest).get("step") != step:
        return False
    before[-1].final.rename(folder.final)
    return True


def _brought(folder: RunFolder, job: JobConfig, *, stages: int, step: int) -> str:
    try:
        bring_final(folder, job, stages=stages)
        lacking = [n for n in range(stages) if not (folder.final / stage_file(n)).exists()]
        if lacking:
            return (
                "no final state: the run ended before "
                f"{', '.join(f'stage {n}' for n in lacking)} had written it; "
                f"`bamboo resume {folder.id}` goes on from its newest checkpoint, if any"
            )
        write_manifest(folder.final, stages=stages, step=step)
    except StorageUnavailable as error:
        later = "" if job.cloud.provider == "local" else f"; `bamboo verify {folder.id}` fetches it"
        return f"no final state: {error}{later}"
    except InputError as error:
        return f"no final state: {error}"
    return ""


def bring_late(folder: RunFolder, receipt: Mapping[str, Any]) -> str:
    """Fetch the final state of a run in an account that has ended in order while its bucket was
    away. Returns why that is impossible, or "". Does nothing for a run of this machine."""
    job, ends = job_of(folder), (Outcome.DONE, Outcome.STOPPED, Outcome.BUDGET)
    if job.cloud.provider == "local" or receipt["outcome"] not in ends or not receipt["step"]:
        return ""
    stages = receipt.get("stages", job.cluster.stages)
    return _brought(folder, job, stages=stages, step=int(receipt["step"]))


def wrong_with_final(folder: RunFolder, *, step: int | None = None) -> str:
    """Why nothing can continue from the final state of a run, which is to be `step` steps in if
    that is given; "" where it can. In an account the state is fetched first if it is missing."""
    late = folder.receipt.exists() and not folder.final_manifest.exists()
    if late and (why := bring_late(folder, folder.read_json(folder.receipt))):
        return why
    try:
        final = read_final(folder.final)
    except InputError as error:
        return str(error)
    if step not in (None, final.step):
        return f"{folder.final} is of step {final.step}"
    return f"{folder.final / final.damaged[0]} is damaged" if final.damaged else ""


def bring_final(folder: RunFolder, job: JobConfig, *, stages: int) -> None:
    """Fetch the final state of a run in an account into its folder; on this machine it is there
    already. Raises InputError for a stage that is missing or damaged, StorageUnavailable,
    OSError."""
    if job.cloud.provider == "local":
        return
    from bamboo.checkpoint.run_files import fetch_final

    objects = wiring.bucket(wiring.run_url(job, folder.id), region=job.cloud.region)
    fetch_final(objects, folder.final, stages=stages)
