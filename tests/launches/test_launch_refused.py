"""What only the start itself finds to be wrong input: one line, exit code 2, nothing left."""

import tempfile
from pathlib import Path

import pytest

from bamboo.coord.driver import create_run
from bamboo.coord.open import open_store
from bamboo.core.state import Policy, initial_state
from bamboo.ids import RunId
from bamboo.topology.grid import Grid
from testbed.store_server import start_store
from tests.launches.test_launch import Bench

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(180)]


def test_a_run_id_that_another_machine_has_taken_in_the_same_store(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with tempfile.TemporaryDirectory(prefix="bt-") as name:
        server = start_store(Path(name))
        try:
            store = open_store(server.url, RunId("taken"))
            grid = Grid(pipelines=1, stages=4)
            state = initial_state(run=RunId("taken"), grid=grid, redundancy="off")
            assert create_run(store, state=state, policy=Policy(), documents={}, at_s=0.0)
            bench.environment["BAMBOO_REDIS_URL"] = server.url
            done = bench.run("launch", "job.toml", "--run", "taken")
            assert done.returncode == 2, done.stderr
            assert "the store holds a run taken already" in done.stderr.splitlines()[-1]
            assert store.read().version == 0
            store.close()
        finally:
            server.stop()
    folder = bench.home / "taken"
    assert not (folder / "endpoint.json").exists()
    assert (folder / "receipt.json").exists()
