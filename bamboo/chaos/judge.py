"""All checkers on the folder of a run after a swarm.

Rule: it reads what run and swarm left on disk, and uses `bamboo verify` for what only a calm run
can show. When it is called, nothing of the run lives any more.
"""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from bamboo import wiring
from bamboo.chaos import check
from bamboo.chaos.check import Verdict
from bamboo.chaos.draw import Fault
from bamboo.chaos.strikes import RECORDS
from bamboo.config.tree import JobConfig
from bamboo.errors import BambooError
from bamboo.runs.decisions import check_decisions
from bamboo.runs.run_folder import RunFolder
from bamboo.telemetry.records import Tail

SLACK_S = 60.0
"""What detecting, booting, restoring and repeating steps may take beyond the job's own waits."""


COPIED_S = 60.0
"""What sending every replica to a new node may take beyond that."""
NOTICED_S = 5.0
"""What deciding may take beyond the time after which a silent node is gone."""


def bound_s(job: JobConfig) -> float:
    """A run of this job must finish a step within so long after the last cause is gone."""
    cluster, cloud = job.cluster, job.cloud
    return cluster.gone_s + cluster.patience_s + cloud.boot_s + cloud.pool_out_s + SLACK_S


def protected_s(job: JobConfig) -> float:
    """Such a run must have all its copies again within so long after the last cause is gone."""
    return bound_s(job) + COPIED_S


def seen_s(job: JobConfig) -> float:
    """The effect of a cause must have been seen so long after it is gone."""
    return job.cluster.gone_s + NOTICED_S


def judge(
    folder: RunFolder,
    job: JobConfig,
    *,
    faults: Sequence[Fault],
    processes: Iterable[int],
    paths: Iterable[Path],
    tell: Callable[[str], None],
) -> tuple[Verdict, ...]:
    """Every checker's verdict. `faults` are those that were drawn; `processes` and `paths` are
    those of the run that still exist."""
    records = read_lines(folder.path / RECORDS)
    receipt = folder.read_json(folder.receipt) if folder.receipt.exists() else None
    decisions = [
        {**json.loads(line["body"]), "version": line["version"]}
        for line in read_lines(folder.decisions)
        if "body" in line
    ]
    verdicts = [
        check.check_end(receipt, [int(r["pid"]) for r in records if r["kind"] == "launcher"]),
        check.check_losses(
            read_lines(folder.metrics),
            steps=int(receipt["step"]) if receipt is not None else 0,
            undone=check.undone_below(receipt) if receipt is not None else 0,
        ),
        check.check_orphans(
            read_lines(folder.cloud),
            processes=tuple(processes),
            paths=tuple(str(path) for path in paths),
        ),
        check.check_faults(records, drawn_s=[fault.at_s for fault in faults]),
        check.check_progress(check.struck(records), check.committed(records), bound_s=bound_s(job)),
        check.check_protection(
            check.struck(records),
            check.stands(records),
            seen_s=seen_s(job),
            bound_s=protected_s(job),
        ),
        check.check_fences(decisions),
        check.check_checkpoints(decisions, _names_below(folder.path / "checkpoints")),
        _asked("decisions", lambda: check_decisions(folder)),
    ]
    tell("checking samples, then training it again without faults")
    told = tenths(tell)
    verdicts.append(_asked("samples", lambda: _verify(folder, samples=True)))
    verdicts.append(_asked("calm", lambda: _verify(folder, told=told)))
    return tuple(verdicts)


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file of JSON lines; none where it is missing."""
    return [json.loads(line) for line in Tail(path).lines()]


def _names_below(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())


def tenths(tell: Callable[[str], None]) -> Callable[[int, int], None]:
    """Reports a training as each tenth of its steps is done."""
    told = 0

    def step_done(step: int, steps: int) -> None:
        nonlocal told
        tenth = 10 * step // max(steps, 1)
        if tenth > told:
            told = tenth
            tell(f"  again: step {step}/{steps}")

    return step_done


def _verify(
    folder: RunFolder,
    *,
    told: Callable[[int, int], None] = lambda step, steps: None,
    samples: bool = False,
) -> dict[str, Any]:
    return wiring.run_verify(folder.path, told=told, samples=samples)


def _asked(name: str, verify: Callable[[], dict[str, Any]]) -> Verdict:
    """The verdict of `bamboo verify`; what it cannot compare is a finding."""
    try:
        body = verify()
    except (BambooError, OSError) as error:
        return Verdict(name=name, finding=str(error))
    if not body["equal"]:
        return Verdict(name=name, finding=f"differs: {body['first_difference']}")
    counted = {k: body[k] for k in ("decisions", "steps", "samples", "tensors") if k in body}
    return Verdict(name=name, finding="", seen=", ".join(f"{n} {k}" for k, n in counted.items()))
