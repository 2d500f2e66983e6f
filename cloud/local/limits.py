"""What the system allows the processes of a run on this machine, and what they need.

Measured on 2026-11-26, 2 cores, torch 2.13 (CPU), grids of 2 to 16 nodes, 1 and 2 pipelines, both
transports, at the fullest moment of a run: open files of the store 12 and 7 a node (and 32 that it
keeps free), of a worker 19 and 6 a node, of the host 15 and 2 a node; tasks (threads) 10 and 16 a
node of one torch thread, none of them for a core (a worker is forked, and starts threads of numpy's
linear algebra only where a user's layer calls that); address space of a worker 0.7 GiB on top of
what its node holds, of the host 0.6 GiB and 33 MiB a node. The needs below are somewhat above that.

Rule: a limit that the process may raise itself is raised. One that is still below the need is
reported in one line with value, need and remedy.
"""

import os
import resource
from dataclasses import dataclass
from pathlib import Path

_MIB, _GIB = 1 << 20, 1 << 30
STORE_FILE_BYTES = 80 * _MIB
"""The embedded store rewrites its log at 64 MiB."""
LIBRARY_BYTES = _GIB // 2
"""Of the address space; code that processes share takes 0.4 GiB of it."""
NUMPY_THREADS = 64
"""The library in numpy's wheels starts no more."""
_PROC, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the fullest process of a run needs, and what all of them need together (`tasks`)."""

    nodes: int
    """How many may exist at once."""
    descriptors: int
    tasks: int
    address_bytes: int
    data_bytes: int
    """The writable part of the address space that belongs to one process."""
    file_bytes: int


def need_of(*, nodes: int, threads: int, cores: int, node_bytes: int, file_bytes: int) -> Need:
    """The need of a run with so many `nodes` of `threads` torch threads each, which may use so many
    `cores`. `node_bytes` is what the fullest node holds, `file_bytes` the longest file that the run
    writes apart from the store's log. Pure."""
    there = nodes + 1  # a node that is being replaced may still exist
    address_bytes = max(_GIB + 40 * _MIB * there, _GIB + 2 * node_bytes)
    return Need(
        nodes=nodes,
        descriptors=56 + 8 * there,
        # In the two processes that look at the layers, numpy's linear algebra has a thread per
        # core.
        tasks=24 + 2 * min(cores, NUMPY_THREADS) + there * (16 + threads),
        address_bytes=address_bytes,
        data_bytes=address_bytes - LIBRARY_BYTES,
        file_bytes=max(file_bytes, STORE_FILE_BYTES),
    )


def connections_of(instances: int) -> int:
    """How many connections the host's HTTP server may have at once, including those of strangers:
    an instance has one, the launcher some. What the host itself needs stays free (`instances`:
    twice the nodes)."""
    return 16 + 2 * instances


def raised(which: int, need: int) -> int:
    """The soft limit (RLIM_INFINITY: none), raised to `need` as far as the hard limit allows.
    Processes that are started from here on inherit it."""
    soft, hard = resource.getrlimit(which)
    reach = need if hard == resource.RLIM_INFINITY else min(need, hard)
    if soft == resource.RLIM_INFINITY or soft >= reach:
        return soft
    resource.setrlimit(which, (reach, hard))
    return reach


def tasks_left(uid: int, *, proc: Path = _PROC, groups: Path = _GROUPS) -> int | None:
    """How many more processes and threads this user, and the control group of this process, may
    have; None: no limit is known. The user's limit does not apply to root."""
    left = [_left_in_group(proc, groups)]
    soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
    if uid != 0 and hard != resource.RLIM_INFINITY:
        if soft < hard:
            resource.setrlimit(resource.RLIMIT_NPROC, (hard, hard))
        left.append(max(0, hard - _tasks_of(uid, proc)))
    return min((one for one in left if one is not None), default=None)


def _tasks_of(uid: int, proc: Path) -> int:
    tasks = 0
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                if entry.stat().st_uid == uid:
                    tasks += sum(1 for _ in (entry / "task").iterdir())
            except OSError:
                continue  # it has ended
    return tasks


def _left_in_group(proc: Path, groups: Path) -> int | None:
    try:
        own = (proc / "self/cgroup").read_text().rpartition("0::/")[2].strip()
        most = (groups / own / "pids.max").read_text().strip()
        taken = (groups / own / "pids.current").read_text().strip()
    except OSError:
        return None  # the root group, or no version 2: no limit is known
    return None if most == "max" else max(0, int(most) - int(taken))


def wrong_with(need: Need, *, uid: int | None = None) -> str:
    """The first limit that is below the need, in a line with its remedy; "" where all are enough.
    Soft limits are raised on the way."""
    for which, words in _LIMITS.items():
        wanted = getattr(need, words.field)
        allowed = raised(which, wanted)
        if allowed != resource.RLIM_INFINITY and allowed < wanted:
            return (
                f"{words.name} limited to {words.shown(allowed)} a process ({words.flag}), and "
                f"a run of {need.nodes} nodes needs {words.shown(wanted)}; {words.remedy(wanted)}"
            )
    left = tasks_left(os.getuid() if uid is None else uid)
    if left is not None and left < need.tasks:
        return (
            f"this user may start {left} more processes and threads here (ulimit -u, or the "
            f"control group's pids.max), and a run of {need.nodes} nodes needs {need.tasks}; "
            "raise the limit, end what else runs, or take fewer nodes"
        )
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """The words for a limit. `unit`: bytes that `ulimit` counts it in; 0: it counts numbers."""

    field: str
    name: str
    flag: str
    unit: int = 0
    otherwise: str = "take fewer nodes"

    def shown(self, value: int) -> str:
        if not self.unit:
            return f"{value:,}"
        return f"{value / _MIB:,.0f} MiB" if value >= _MIB else f"{value / 1024:,.0f} KiB"

    def remedy(self, wanted: int) -> str:
        value = -(-wanted // self.unit) if self.unit else wanted
        return f"raise the hard limit (`{self.flag} {value}` as root), or {self.otherwise}"


_LIMITS = {
    resource.RLIMIT_NOFILE: _Words(field="descriptors", name="open files are", flag="ulimit -n"),
    resource.RLIMIT_AS: _Words(
        field="address_bytes",
        name="virtual memory is",
        flag="ulimit -v",
        unit=1024,
        otherwise="take more stages of less each",
    ),
    resource.RLIMIT_DATA: _Words(
        field="data_bytes",
        name="memory for data is",
        flag="ulimit -d",
        unit=1024,
        otherwise="take more stages of less each",
    ),
    resource.RLIMIT_FSIZE: _Words(
        field="file_bytes",
        name="the size of a file is",
        flag="ulimit -f",
        unit=1024,
        otherwise="take more stages of less each",
    ),
}
