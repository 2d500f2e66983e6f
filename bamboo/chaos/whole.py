"""One swarm from its launch to its verdicts.

    launch --detach  ->  faults, heal, stop  ->  see what is left  ->  judge

Rule: `chaos.json` in the run's folder has seed and faults from the beginning, and at the end the
verdicts.
"""

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from bamboo.chaos.check import Verdict
from bamboo.chaos.draw import Fault, draw
from bamboo.chaos.hands import Hands
from bamboo.chaos.judge import judge, protected_s, seen_s
from bamboo.chaos.led import LedRun, led_run
from bamboo.chaos.strikes import FIRST_STEP_S, STOP_S, Swarm
from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig
from bamboo.errors import BambooError, InputError, VerifyDiffers
from bamboo.ids import RunId, run_id
from bamboo.quantities import count
from bamboo.runs import run_folder
from bamboo.signals import Interrupts
from bamboo.sites.here import processes_of
from bamboo.study.intervals import given_every

HEAD = "chaos.json"
GONE_S = 15.0
"""The last process of a run may still be leaving so long after the receipt."""
SPARE_S = 600.0
LOOK_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """A swarm for a job. Nothing was started for it."""

    path: Path
    """The job file."""
    job: JobConfig
    overrides: tuple[str, ...]
    seed: int
    minutes: float
    faults: tuple[Fault, ...]

    def head(self) -> dict[str, Any]:
        """The swarm as JSON, as `chaos.json` begins."""
        return {
            "seed": self.seed,
            "minutes": self.minutes,
            "job": str(self.path),
            "overrides": list(self.overrides),
            "faults": [fault.to_json() for fault in self.faults],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A swarm that is over, and what every checker says of its run."""

    run: RunId
    file: Path
    """`chaos.json` of the run."""
    verdicts: tuple[Verdict, ...]

    def error(self, seed: int) -> BambooError | None:
        """The first finding; VerifyDiffers where nothing but the run's results is wrong."""
        wrong = [verdict for verdict in self.verdicts if not verdict.ok]
        if not wrong:
            return None
        said = f"run {self.run}, seed {seed}: {wrong[0].name}: {wrong[0].finding}"
        if all(verdict.name in ("calm", "losses", "samples", "decisions") for verdict in wrong):
            return VerifyDiffers(said)
        return BambooError(said)


def draw_swarm(path: Path, *, overrides: Sequence[str], seed: int, minutes: float) -> Drawn:
    """The faults of this seed for a job. Raises InputError for a job that cannot be read, or whose
    own settings would make it fail in such a swarm."""
    job = load_job(path, overrides)
    if job.cloud.provider != "local":
        raise InputError.at(
            file=job.file,
            key="cloud.provider",
            value=job.cloud.provider,
            problem="a swarm is let loose on this machine alone",
            remedy='take "local"',
        )
    if not given_every(job):
        raise InputError.at(
            file=job.file,
            key="checkpoint.every_steps",
            value=job.checkpoint.every_steps,
            problem="all nodes are killed at once, and without a checkpoint the run ends with that",
            remedy="set it to 20, say",
        )
    return Drawn(
        path=path,
        job=job,
        overrides=tuple(overrides),
        seed=seed,
        minutes=minutes,
        faults=tuple(draw(seed, minutes=minutes, lease_s=job.cluster.gone_s)),
    )


def let_loose(drawn: Drawn, *, name: str, tell: Callable[[str], None]) -> Judged:
    """Launch the job as `name`, by default made from its own, let the faults loose, check. Raises
    InputError for wrong input, BambooError when the run does not reach its first step."""
    job = drawn.path
    config = drawn.job
    minutes = drawn.minutes
    faults = drawn.faults
    overrides = list(drawn.overrides)
    head = drawn.head()
    now = datetime.now().astimezone()
    run = run_id(name) if name else run_folder.fresh_id(job, now=now, chance=random.Random())
    heal_s = 2 * protected_s(config)
    if config.budget.max_hours == 0:  # ends the run if this process is killed
        longest_s = FIRST_STEP_S + 60 * minutes + heal_s + STOP_S + SPARE_S
        # The run is not meant to reach its last step: it is stopped long before.
        overrides += [f"budget.max_hours={longest_s / 3600:.3f}", "budget.partial=true"]
    with Interrupts().listening(), led_run(job, run, overrides) as led:
        lasting = f"{minutes:g} minute{'' if minutes == 1 else 's'}"
        tell(f"{run}: {count(len(faults), 'fault')} in {lasting}; {led.folder.path}")
        run_folder.write_json(led.folder.path / HEAD, head)
        swarm = Swarm(led, faults, hands=Hands(led.cloud.pid), tell=tell)
        swarm.run(minutes=minutes, heal_s=heal_s, seen_s=seen_s(config))
        processes = _left(led)
        paths = [led.cloud.socket_dir] if led.cloud.socket_dir.exists() else []
    verdicts = judge(led.folder, config, faults=faults, processes=processes, paths=paths, tell=tell)
    body = {**head, "verdicts": [verdict.to_json() for verdict in verdicts]}
    run_folder.write_json(led.folder.path / HEAD, body)
    return Judged(run=run, file=led.folder.path / HEAD, verdicts=verdicts)


def _left(led: LedRun) -> list[int]:
    """Processes of the run that still live a while after its receipt."""
    sessions = {led.cloud.pid, *led.launchers}
    end_s = time.monotonic() + GONE_S
    while True:
        left = [pid for session in sessions for pid in processes_of(session)]
        left_paths = led.cloud.socket_dir.exists()
        if not (left or left_paths) or time.monotonic() > end_s:
            return sorted(left)
        time.sleep(LOOK_S)
