"""A checkpoint at an interval is left out where all are about to stop for what must not be lost."""

from pathlib import Path
from typing import cast

from bamboo.runtime.step.slot_run import SlotRun
from tests.runtime.state.test_checkpoints import Bench, Stands


def test_what_must_not_be_lost_waits_for_no_other_write(tmp_path: Path) -> None:
    """Where all are about to stop for it, a copy at an interval is left out, in silence."""
    bench = Bench(tmp_path)
    bench.write(5)
    bench.checkpoints._took_s = 2.0
    run = cast("SlotRun", Stands(0, 10))
    bench.checkpoints.boundary(run, 1, left_s=2.9)
    assert not bench.checkpoints.backlog.undone()
    assert ("CheckpointFailed", 10) not in bench.said.kinds()
    bench.checkpoints.boundary(run, 1, left_s=3.1)
    assert [item.step for item in bench.checkpoints.backlog.undone()] == [10]
