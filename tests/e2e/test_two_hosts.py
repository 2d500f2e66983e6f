"""Two hosts with a network between them: each node in a network namespace of its own, with an
address of its own, without a folder of the run. A model of one's own is brought, nodes are lost,
and the bits are those of a calm run."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bamboo.checkpoint.along import put_code
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.config.load import load_job
from bamboo.config.resolve import semantics
from bamboo.config.tree import JobConfig
from bamboo.core.events import NoticeReceived
from bamboo.data.dataset import load_data
from bamboo.ids import NodeId
from bamboo.loading import interpreter, steady_environment
from bamboo.models import build_model
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import Placement, Strategy
from bamboo.user_code.bundle import CODE_FOLDER, read_manifest
from bamboo.user_code.guard import unguarded
from testbed.calm import assert_calm
from testbed.cluster import Cluster, protected
from testbed.store_server import start_store
from tests.jobs import SMALL, TEXT, with_code
from tests.launches.test_own_code import ACTIVATION, MODEL, PARTS

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(180)]
HOSTS = ("10.213.39.1", "10.213.39.2")
SETS = (
    *("train.steps=60", "train.batch=8", "train.microbatch=2", "checkpoint.every_steps=0"),
    *("cluster.stages=2", "cluster.redundancy=eager", "cluster.transport=tcp"),
    *("cluster.device=virtual", "cluster.allow_idle_gpu=true"),
    *("cluster.virtual_forward_ms=[8.0]", "cluster.virtual_backward_ms=[16.0]"),
)


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=20)


@pytest.fixture
def hosts() -> Iterator[Mapping[str, str]]:
    """Address -> namespace, of two that reach each other and nobody else."""
    if os.geteuid() or not shutil.which("ip"):
        pytest.skip("network namespaces are made by root, with `ip` of iproute2")
    names = [f"bamboo-{os.getpid()}-{number}" for number in range(len(HOSTS))]
    made = dict(zip(HOSTS, names, strict=True))
    try:
        for name in names:
            ip("netns", "add", name)
        first, second = names
        pair = ("type", "veth", "peer", "name", "link0", "netns", second)
        ip("link", "add", "link0", "netns", first, *pair)
        for address, name in made.items():
            ip("-n", name, "address", "add", f"{address}/24", "dev", "link0")
            for device in ("lo", "link0"):
                ip("-n", name, "link", "set", device, "up")
        yield made
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


class Host:
    """A worker in a namespace, as a process of a cluster."""

    def __init__(self, namespace: str, config: Mapping[str, str], log: Path) -> None:
        with log.open("ab") as said:
            self._process = subprocess.Popen(
                ["ip", "netns", "exec", namespace, *interpreter("bamboo.wiring.worker")],
                stdin=subprocess.PIPE,
                stdout=said,
                stderr=said,
                env=steady_environment(),
                process_group=0,
            )
        self.pid = self._process.pid  # `ip` becomes the program that it is given
        assert self._process.stdin is not None
        with self._process.stdin as told:
            told.write(json.dumps(dict(config)).encode() + b"\n")

    def signal(self, number: int) -> bool:
        if self._process.poll() is not None:
            return False
        self._process.send_signal(number)
        return True

    def status(self, timeout_s: float = 0.0) -> int | None:
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def close(self) -> None:
        self.signal(signal.SIGKILL)
        self._process.wait(20)


class TwoHosts(Cluster):
    """A run whose nodes are on alternate hosts, and have of it what a bucket has."""

    hosts: Mapping[str, str]

    def _strategy(self) -> Strategy:
        job, grid = self.job, self.grid
        workload = build_model(job)
        digest = load_data(job, own=workload.data).digest
        code = read_manifest(Path(job.code)).identity()
        cut = (0, len(workload.layers) // 2, len(workload.layers))
        return Strategy(
            semantics=semantics(job, data_digest=digest, code=code),
            placement=Placement(cut=cut, grid=grid, redundancy=job.cluster.redundancy),
        )

    def fork(self, config: Mapping[str, str], log: Path) -> Host:  # type: ignore[override]
        address, namespace = [*self.hosts.items()][len(self.processes) % len(self.hosts)]
        there = {"run_dir": "", "run_url": str(self.directory), "bind_host": address}
        start = {"start_url": str(self.directory / "starts")}
        return Host(namespace, {**config, **there, **start}, log)


def own_job(folder: Path) -> JobConfig:
    """A job with a model in three files and a settings file, taken along into this folder."""
    files = {"m.py": MODEL, "parts.py": PARTS, "activation.py": ACTIVATION, "text.txt": TEXT}
    for name, text in {**files, "conf.json": '{"scale": 0.5}'}.items():
        (folder / name).write_text(text, encoding="utf-8")
    own = SMALL.replace("[model]", f'[model]\nmodel = "{folder}/m.py:build"')
    (folder / "job.toml").write_text(own.replace('"text.txt"', f'"{folder}/text.txt"'))
    return with_code(load_job(folder / "job.toml", SETS), folder / "run")


def test_own_code_between_two_hosts(hosts: Mapping[str, str], tmp_path: Path) -> None:
    job = own_job(tmp_path)
    with tempfile.TemporaryDirectory(prefix="bt-") as name:
        directory = Path(name)
        put_code(DirectoryStore(directory / "starts"), tmp_path / "run" / CODE_FOLDER)
        server = start_store(directory)
        run = TwoHosts(directory, job, server)
        unguarded()  # what follows is nothing of the user's
        try:
            run.hosts = hosts
            for file in ("m.py", "parts.py", "activation.py", "conf.json"):
                (tmp_path / file).rename(tmp_path / f"away-{file}")  # a host has no such files
            shutil.move(tmp_path / "run", tmp_path / "away")
            run.start()
            run.wait_step(8)
            run.kill(run.owner(Slot(pipeline=0, stage=1)))
            run.start_one()
            run.start_one()
            run.wait(protected, 60.0, "a copy of every slot")
            noticed = run.owner(Slot(pipeline=0, stage=0))
            run.append(NoticeReceived(node=NodeId(noticed), deadline_s=time.time() + 3.0))
            run.wait_step(45)
            endpoints = {node.endpoint for node in run.state().nodes}
            assert {e.split("//")[1].split(":")[0] for e in endpoints} == set(HOSTS), endpoints
            (tmp_path / "away").rename(tmp_path / "run")
            unguarded()
            for file in tmp_path.glob("away-*"):
                file.rename(tmp_path / file.name.removeprefix("away-"))
            assert_calm(run)
        finally:
            run.close()
            server.stop()
            unguarded()
