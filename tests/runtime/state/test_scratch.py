"""Where shards are written before they are stored: each writer has a folder of its own there."""

from pathlib import Path

from bamboo.config.tree import CheckpointConfig
from bamboo.ids import RunId
from bamboo.runtime.state.checkpoints import Checkpoints
from tests.runtime.state.test_checkpoints import HASH, ME, Bench


def test_two_runs_may_share_a_scratch(tmp_path: Path) -> None:
    """Another node of one name stores the same stage while this one's is on its way."""
    bench = Bench(tmp_path / "one")
    other = Bench(tmp_path / "other")
    other.checkpoints = Checkpoints(
        me=ME,
        run=RunId("other"),
        semantic_hash=HASH,
        objects=other.store,
        config=CheckpointConfig(every_steps=5),
        last_step=100,
        scratch=bench.scratch,
        outbox=other.said,
    )
    honest = bench.store.put_file

    def put_file(name: str, path: Path) -> None:
        if not other.said.events:
            other.write(5)
        honest(name, path)

    bench.store.put_file = put_file  # type: ignore[method-assign]
    bench.write(5)
    assert (bench.good(), other.good()) == (5, 5)
