"""What the system allows against what a run needs: raised where it can be, else one line."""

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from cloud.local import limits
from cloud.local.http_server import OVER
from cloud.local.limits import Need, connections_of, need_of, raised, tasks_left, wrong_with

pytestmark = pytest.mark.timeout(60)

NONE = resource.RLIM_INFINITY
GIB = 1 << 30


class System:
    """Limits as values: (soft, hard) by number, and what was set."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now: dict[int, tuple[int, int]] = {}
        monkeypatch.setattr(limits.resource, "getrlimit", lambda w: self.now.get(w, (NONE, NONE)))
        monkeypatch.setattr(limits.resource, "setrlimit", self.now.__setitem__)


@pytest.fixture
def system(monkeypatch: pytest.MonkeyPatch) -> System:
    made = System(monkeypatch)
    monkeypatch.setattr(limits, "_left_in_group", lambda *_: None)
    return made


def need(nodes: int = 3) -> Need:
    return need_of(nodes=nodes, threads=1, cores=2, node_bytes=0, file_bytes=0)


@pytest.mark.parametrize("nodes", [1, 2, 16, 200])
def test_connections_leave_the_host_what_it_needs_itself(nodes: int) -> None:
    """Measured: 15 and two a node, one of them its connection; twice the nodes may be there."""
    own, instances = 15, 2 * nodes
    taken = own + instances + connections_of(instances) + OVER
    assert taken <= need(nodes).descriptors
    assert connections_of(instances) > instances


@pytest.mark.parametrize(
    ("nodes", "seen"),
    # The fullest process of each kind in the runs that the file names: what the store had and
    # keeps free, the tasks of all together, and the address space of the host in GiB.
    [(2, (24 + 32, 40, 0.7)), (4, (36 + 32, 68, 0.6)), (8, (62 + 32, 135, 0.9)),
     (16, (121 + 32, 253, 1.1))],
)  # fmt: skip
def test_the_need_is_above_what_was_measured(nodes: int, seen: tuple[int, int, float]) -> None:
    found = need(nodes)
    descriptors, tasks, gib = seen
    assert descriptors < found.descriptors < 1.5 * descriptors + 32
    assert tasks < found.tasks < 1.5 * tasks + 40
    assert gib * GIB < found.address_bytes < 2 * gib * GIB


def test_it_grows_with_what_a_node_holds_and_writes() -> None:
    found = need_of(nodes=2, threads=1, cores=2, node_bytes=3 * GIB, file_bytes=GIB)
    assert found.address_bytes == 7 * GIB
    assert found.file_bytes == GIB
    assert need_of(nodes=2, threads=4, cores=2, node_bytes=0, file_bytes=0).tasks > need(2).tasks


def test_nodes_need_no_more_tasks_where_there_are_more_cores() -> None:
    """A machine of 128 cores whose container allows 512 tasks has room for 16 nodes."""
    large = need_of(nodes=16, threads=1, cores=128, node_bytes=0, file_bytes=0)
    assert need(16).tasks < large.tasks < 512


def test_a_soft_limit_is_raised_as_far_as_is_needed(system: System) -> None:
    system.now[resource.RLIMIT_NOFILE] = (46, 4096)
    assert wrong_with(need()) == ""
    assert system.now[resource.RLIMIT_NOFILE] == (need().descriptors, 4096)
    assert raised(resource.RLIMIT_NOFILE, 50) == need().descriptors, "and never lowered"


def test_a_hard_one_is_said_with_value_need_and_remedy(system: System) -> None:
    system.now[resource.RLIMIT_NOFILE] = (40, 46)
    said = wrong_with(need())
    assert said == (
        "open files are limited to 46 a process (ulimit -n), and a run of 3 nodes needs 88; "
        "raise the hard limit (`ulimit -n 88` as root), or take fewer nodes"
    )


@pytest.mark.parametrize(
    ("which", "said"),
    [
        (resource.RLIMIT_AS, "virtual memory is limited to 100 MiB a process (ulimit -v), "),
        (resource.RLIMIT_DATA, "memory for data is limited to 100 MiB a process (ulimit -d), "),
        (resource.RLIMIT_FSIZE, "the size of a file is limited to 100 KiB a process (ulimit -f), "),
    ],
)
def test_so_are_memory_and_size_of_files(system: System, which: int, said: str) -> None:
    system.now[which] = (1, 100 << (10 if which == resource.RLIMIT_FSIZE else 20))
    assert wrong_with(need()).startswith(said)


def process(proc: Path, pid: int, tasks: int) -> None:
    for task in range(tasks):
        (proc / str(pid) / "task" / str(pid + task)).mkdir(parents=True)


def test_processes_are_counted_with_those_that_the_user_has(system: System, tmp_path: Path) -> None:
    process(tmp_path, 100, 5)
    process(tmp_path, 200, 2)
    (tmp_path / "self").mkdir()
    me = (tmp_path / "100").stat().st_uid
    system.now[resource.RLIMIT_NPROC] = (20, 40)
    if me:
        assert tasks_left(me, proc=tmp_path, groups=tmp_path) == 33
    assert tasks_left(me + 1, proc=tmp_path, groups=tmp_path) == 40, "others are not counted"
    assert system.now[resource.RLIMIT_NPROC] == (40, 40)
    assert tasks_left(0, proc=tmp_path, groups=tmp_path) is None, "of root nothing is asked"


def test_too_few_processes_are_said(system: System) -> None:
    system.now[resource.RLIMIT_NPROC] = (10, 10)
    said = wrong_with(need(), uid=2**31)
    assert said.startswith("this user may start 10 more processes and threads here (ulimit -u")
    assert f"a run of 3 nodes needs {need().tasks}; " in said


def test_a_control_group_is_asked(tmp_path: Path) -> None:
    proc, group = tmp_path / "proc", tmp_path / "groups" / "mine"
    (proc / "self").mkdir(parents=True)
    group.mkdir(parents=True)
    (proc / "self" / "cgroup").write_text("0::/mine\n")
    assert limits._left_in_group(proc, tmp_path / "groups") is None, "no version 2"
    (group / "pids.current").write_text("12\n")
    for most, left in (("max\n", None), ("50\n", 38), ("10\n", 0)):
        (group / "pids.max").write_text(most)
        assert limits._left_in_group(proc, tmp_path / "groups") == left


def test_the_kernel_has_the_last_word() -> None:
    code = (
        "from cloud.local.limits import *; "
        "print(wrong_with(need_of(nodes=3, threads=1, cores=2, node_bytes=0, file_bytes=0)))"
    )
    for limit, said in (("-n 46", "open files are limited to 46 "), ("-Sn 46", "")):
        done = subprocess.run(
            ["/bin/bash", "-c", f'ulimit {limit} && exec "{sys.executable}" -c "$0"', code],
            capture_output=True,
            text=True,
            timeout=30,
            check=True,
        )
        assert done.stdout.startswith(said)
        assert said or done.stdout == "\n"
