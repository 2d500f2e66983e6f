"""One swarm from its launch to its verdicts.

    launch --detach  ->  faults, heal, stop  ->  see what is left  ->  judge

Rule: `chaos.json` in the run's folder has seed and faults from the beginning, and at the end the
verdicts.
"""

import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from bamboo.chaos.check import Verdict
from bamboo.chaos.draw import Fault
from bamboo.chaos.hands import Hands
from bamboo.chaos.judge import judge, protected_s, seen_s
from bamboo.chaos.led import LedRun, led_run
from bamboo.chaos.strikes import FIRST_STEP_S, STOP_S, Swarm
from bamboo.config.tree import JobConfig
from bamboo.ids import RunId, run_id
from bamboo.quantities import count
from bamboo.runs import run_folder
from bamboo.signals import Interrupts

HEAD = "chaos.json"
GONE_S = 15.0
"""The last process of a run may still be leaving so long after the receipt."""
SPARE_S = 600.0
LOOK_S = 0.05


def let_loose(
    job: Path,
    config: JobConfig,
    faults: Sequence[Fault],
    *,
    head: Mapping[str, Any],
    name: str,
    tell: Callable[[str], None],
) -> tuple[RunId, tuple[Verdict, ...]]:
    """Launch the job, let the faults loose, check. Returns the run's id and the verdicts. Raises
    InputError for wrong input, BambooError when the run does not reach its first step."""
    minutes, overrides = float(head["minutes"]), list(head["overrides"])
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
    return run, verdicts


def _left(led: LedRun) -> list[int]:
    """Processes of the run that still live a while after its receipt."""
    from cloud.local.session import members

    sessions = {led.cloud.pid, *led.launchers}
    end_s = time.monotonic() + GONE_S
    while True:
        left = [pid for session in sessions for pid in members(session)]
        left_paths = led.cloud.socket_dir.exists()
        if not (left or left_paths) or time.monotonic() > end_s:
            return sorted(left)
        time.sleep(LOOK_S)
