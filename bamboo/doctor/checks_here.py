"""What `bamboo doctor` checks on this machine: versions, GPU, loopback, limits, disk, and the
store.

Rule: a check starts nothing that outlives it, and a machine without a GPU is not a fault.
"""

import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from bamboo import wiring
from bamboo.config.tree import JobConfig
from bamboo.disk import ROOM_BYTES, free_bytes
from bamboo.doctor.checks import Check, Finding, Result
from bamboo.quantities import size
from bamboo.runs import run_folder
from bamboo.runs.disk_space import unwritable
from bamboo.runtime.device.nvidia_driver import too_old, torch_here
from bamboo.sites import here

LEAST_BYTES = 5 << 30
"""Room for final states, checkpoints and logs of a run or two."""
GPU_DEADLINE_S = 15.0
OLDEST_STORE = (6, 2)
MOST_SKEW_S = 60.0
"""AWS refuses requests that are off by more than 5 minutes; a clock this far off soon will be."""
PYTHON = (3, 11)


def here_checks(reference: str, *, in_account: bool, job: JobConfig | None = None) -> list[Check]:
    """The checks of this machine. `reference` is the store's URL or a reference to it; with "" each
    run starts its own store, which nodes `in_account` cannot use. `job` is what is to run here, by
    default a job of the default size."""
    return [
        Check(name="python", ask=python_finding),
        Check(name="gpu", ask=gpu_finding),
        Check(name="loopback", ask=loopback_finding),
        *([] if in_account else [Check(name="limits", ask=lambda: limits_finding(job))]),
        Check(name="disk", ask=lambda: disk_finding(run_folder.home())),
        Check(name="store", ask=lambda: store_finding(reference, in_account=in_account)),
    ]


def python_finding() -> Finding:
    """The interpreter, and the torch that trains runs."""
    python = ".".join(map(str, sys.version_info[:3]))
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return Finding(
            result=Result.FAULT,
            sentence=f"Python {python}, without torch",
            remedy="set the environment up again: `make setup`",
        )
    return Finding(
        result=Result.GOOD,
        sentence=f"Python {python}, torch {torch}: a run is resumed and verified with these only",
    )


def gpu_finding(program: str = "nvidia-smi") -> Finding:
    """The GPUs that the driver lists, and whether it serves the torch that is installed."""
    if shutil.which(program) is None:
        return Finding(
            result=Result.GOOD,
            sentence="no NVIDIA driver on this machine: nodes that run here compute on its CPU",
        )
    asked = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    remedy = f"see what `{program}` says; a driver that was renewed may need a restart"
    try:
        done = subprocess.run(
            asked,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=GPU_DEADLINE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = f"{program} did not answer: {type(error).__name__}"
        return Finding(result=Result.FAULT, sentence=why, remedy=remedy)
    rows = tuple(line.strip() for line in done.stdout.splitlines() if line.strip())
    if done.returncode != 0 or not rows:
        said = " ".join((done.stderr or done.stdout).split())[:200] or "nothing"
        why = f"{program} ended with status {done.returncode} and said {said}"
        return Finding(result=Result.FAULT, sentence=why, remedy=remedy)
    good = Finding(result=Result.GOOD, sentence=f"{len(rows)} GPU", lines=rows)
    try:
        torch, cuda = torch_here()
    except metadata.PackageNotFoundError:
        return good  # said of Python
    driver = rows[0].split(",")[-2].strip() if rows[0].count(",") >= 2 else ""
    if old := too_old(driver, torch=torch, cuda=cuda):
        return replace(good, result=Result.FAULT, sentence=old[0], remedy=old[1])
    on_cpu = "" if cuda else f"; torch {torch} has no CUDA: nodes that run here compute on the CPU"
    return replace(good, sentence=good.sentence + on_cpu)


def loopback_finding() -> Finding:
    """Whether the processes of a run on this machine reach each other."""
    if trouble := here.unreachable():
        return Finding(result=Result.FAULT, sentence=trouble)
    return Finding(result=Result.GOOD, sentence="127.0.0.1 answers; no other network is needed")


def limits_finding(job: JobConfig | None) -> Finding:
    """Whether the system grants the processes of a run here what they need."""
    need = here.need_of(job or JobConfig())
    if wrong := here.wrong_with(need):
        return Finding(result=Result.FAULT, sentence=wrong)
    return Finding(
        result=Result.GOOD,
        sentence=f"open files ({need.descriptors} a process), processes and threads "
        f"({need.tasks}), virtual memory and file sizes are enough for a run of {need.nodes} nodes",
    )


def disk_finding(home: Path) -> Finding:
    """The free space of the disk that runs are written to."""
    there = next(path for path in (home, *home.parents) if path.exists())
    if wrong := unwritable(there):
        remedy = "set BAMBOO_HOME to a folder that you may write"
        return Finding(result=Result.FAULT, sentence=wrong, remedy=remedy)
    free = free_bytes(there)
    sentence = f"{size(free)} are free for runs in {home}"
    if free >= LEAST_BYTES:
        return Finding(result=Result.GOOD, sentence=sentence)
    return Finding(
        result=Result.FAULT if free < ROOM_BYTES else Result.WARNING,
        sentence=sentence,
        remedy="make room there, or set BAMBOO_HOME to a folder on another disk",
    )


def store_finding(
    reference: str, *, in_account: bool = False, now: Callable[[], float] = time.time
) -> Finding:
    """Whether the named store answers and accepts a run's writes; which product it is, how it is
    reached, and its clock; for a run in an account also whether it keeps runs apart. A store that
    cannot be used is a fault, since no run begins without one."""
    if not reference and in_account:
        return Finding(
            result=Result.FAULT,
            sentence="none is named, and nodes in an account do not reach one of this machine",
            remedy="`bamboo init` names that of the stack; or set BAMBOO_REDIS_URL",
        )
    if not reference:
        return Finding(
            result=Result.GOOD,
            sentence="none is named: each run on this machine starts one of its own",
        )
    from bamboo.errors import StoreRefused

    try:
        seen, encrypted = wiring.look_at_store(reference)
        if in_account:
            wiring.check_separates_runs(reference)
    except StoreRefused as error:
        sentence, _, remedy = str(error).rpartition("; ")
        if "cannot be reached" in sentence:
            remedy += "; for a store of terraform/: is this machine in its network, launcher_cidrs?"
        return Finding(result=Result.FAULT, sentence=sentence, remedy=remedy)
    way = "over TLS" if encrypted else "without TLS"
    what = f"{seen.software} {seen.version} answers {way} and takes what a run writes"
    parts = seen.version.split(".")
    known = all(part.isdecimal() for part in parts[:2]) and len(parts) >= 2
    if known and tuple(map(int, parts[:2])) < OLDEST_STORE:
        return Finding(
            result=Result.FAULT,
            sentence=f"{what}, which is older than 6.2",
            remedy="take Redis 6.2 or later, or Valkey",
        )
    off_s = seen.now_s - now()
    if abs(off_s) > MOST_SKEW_S:
        return Finding(
            result=Result.WARNING,
            sentence=f"{what}; its clock is {off_s:+.0f} s from this machine's",
            remedy="set both by NTP: times of a run are the store's, those of its files ours",
        )
    return Finding(result=Result.GOOD, sentence=what)
