"""Before which steps a checkpoint is begun."""

from pathlib import Path

import pytest

from tests.runtime.state.test_checkpoints import STAGES, Bench, keep

pytestmark = pytest.mark.timeout(60)


def test_none_is_begun_after_the_last_step(tmp_path: Path) -> None:
    """The run would be over before it is complete, and leave a torn one behind."""
    bench = Bench(tmp_path)
    keep(bench, 100)
    assert not bench.checkpoints.backlog.undone()
    keep(bench, 94)
    assert not bench.checkpoints.backlog.undone()
    keep(bench, 95)
    assert [item.step for item in bench.checkpoints.backlog.undone()] == [95] * STAGES
