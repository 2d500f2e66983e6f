"""A process that is about to join has touched the memory that it will need."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

from bamboo.config.tree import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.models import named_parameters
from bamboo.runtime.device import host_memory
from bamboo.runtime.node.arrival import needed_bytes
from testbed.simulated import builder_of

TOUCHED = """
import resource, sys
import torch
from bamboo.runtime.device.host_memory import keep_freed_memory, touch

keep_freed_memory()
if sys.argv[1] == "touched":
    assert touch(160 << 20) == 160 << 20
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
held = [torch.zeros(1 << 20) for _ in range(32)]
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

COUNTED = """
from pathlib import Path
from bamboo.config.tree import (
    CheckpointConfig, ClusterConfig, DataConfig, JobConfig, ModelConfig, TrainConfig
)
from bamboo.runtime.node.arrival import needed_bytes
from bamboo.runtime.device.host_memory import keep_freed_memory
from testbed.simulated import builder_of

def held():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["VmSize"].split()[0]) * 1024

keep_freed_memory()
job = JobConfig(
    checkpoint=CheckpointConfig(every_steps=0),
    model=ModelConfig(layers=2, width=1024, heads=2, context=4),
    data=DataConfig(source="path", path="LICENSE", max_bytes=2000),
    train=TrainConfig(steps=3, batch=4, microbatch=1, virtual_nodes=1),
    cluster=ClusterConfig(stages=2, redundancy="stash"),
)
builder = builder_of(job)
before = held()
assert needed_bytes(builder) > 12 * 4 * 1024**2 * 12
print(held() - before)
"""


def said_by(script: str, *words: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        check=True,
        timeout=100,
        cwd=Path(__file__).parents[3],
    )
    return int(done.stdout)


def faults(how: str) -> int:
    return said_by(TOUCHED, how)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc: mallopt")
def test_what_was_touched_is_given_out_first() -> None:
    # 128 MiB: 32,768 pages of 4 KiB, or 64 huge ones.
    assert 10 * faults("touched") < faults("as it comes")


@pytest.mark.skipif(platform.system() != "Linux", reason="Linux: /proc/self/status")
def test_to_count_what_a_node_needs_takes_no_memory() -> None:
    # Taken and freed untouched it would be what the next ones get, before what was touched.
    assert said_by(COUNTED) < 16 << 20


def test_a_process_leaves_most_of_what_is_free_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "free_bytes", lambda: 8 << 20)
    assert host_memory.touch(1 << 40) == 1 << 20
    assert host_memory.touch(1 << 10) == 1 << 10


def test_where_nobody_says_what_is_free_nothing_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> int:
        raise FileNotFoundError("/proc/meminfo")

    monkeypatch.setattr(host_memory, "free_bytes", unknown)
    assert host_memory.touch(1 << 10) == 0


@pytest.mark.parametrize(
    ("most", "free"),
    [("max", 8 << 30), (str(5 << 30), 4 << 30), (str(1 << 20), 0), (None, 8 << 30)],
)
def test_a_control_group_may_allow_less_than_the_machine_has(
    tmp_path: Path, most: str | None, free: int
) -> None:
    group = tmp_path / "sys/fs/cgroup/a.slice/b"
    for folder in (tmp_path / "proc/self", group):
        folder.mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text(f"MemTotal: 1 kB\nMemAvailable:  {8 << 20} kB\n")
    (tmp_path / "proc/self/cgroup").write_text("1:cpu:/other\n0::/a.slice/b\n")
    if most is not None:
        (group / "memory.max").write_text(f"{most}\n")
        (group / "memory.current").write_text(f"{1 << 30}\n")
    assert host_memory.free_bytes(tmp_path) == free


@pytest.mark.parametrize(
    ("virtual_nodes", "redundancy", "copies"),
    [
        # Parameters, two moments, a gradient, and the three that are counted here; with a second
        # pipeline its share of both pipelines' sums and the result, the result of the step before,
        # and what of that step may be sent again.
        (1, "off", 4 + 3),
        (2, "peer", 4 + 3 + 2 + 1 + 1),
        # A replica with its gradient, and a gradient on its way to the shadow.
        (1, "stash", 4 + 3 + 4 + 1),
        # After a takeover, all that a second pipeline brings comes again for the other stage.
        (2, "stash", 4 + 3 + 2 + 1 + 4 + 1 + 2 + 1 + 1),
    ],
)
def test_a_node_needs_what_the_largest_stage_does(
    virtual_nodes: int, redundancy: str, copies: int
) -> None:
    builder = builder_of(
        JobConfig(
            checkpoint=CheckpointConfig(every_steps=0),
            model=ModelConfig(layers=2, width=8, heads=2, context=4),
            data=DataConfig(
                source="path", path=str(Path(__file__).parents[3] / "LICENSE"), max_bytes=2000
            ),
            train=TrainConfig(steps=3, batch=4, microbatch=1, virtual_nodes=virtual_nodes),
            cluster=ClusterConfig(stages=2, redundancy=redundancy),
        )
    )
    stages = [builder.strategy.placement.layers_of(p) for p in range(2)]
    modules = [[(n, builder.workload.layers[n]()) for n in layers] for layers in stages]
    largest = max(sum(p.numel() for _, p in named_parameters(layers)) for layers in modules)
    assert needed_bytes(builder) == copies * 4 * largest
