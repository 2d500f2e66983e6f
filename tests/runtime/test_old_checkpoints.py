"""When old checkpoints are deleted: behind a complete one, and never at its cost."""

from pathlib import Path

import pytest

from bamboo.checkpoint.catalogue import examine, steps
from bamboo.core.events import CheckpointFailed
from tests.runtime.test_checkpoints import AWAY, HASH, Bench, garbled

pytestmark = pytest.mark.timeout(60)


def test_a_damaged_manifest_does_not_stop_the_tidying(tmp_path: Path) -> None:
    """Old ones are deleted still, and the damaged one, which nobody can restore, with them."""
    bench = Bench(tmp_path, keep=1)
    bench.write(5)
    garbled(bench, 5)
    for step in (10, 15):
        bench.write(step)
    assert bench.said.kinds().count(("CheckpointDone", 15)) == 1
    assert not [e for e in bench.said.events if isinstance(e, CheckpointFailed)]
    assert steps(bench.store) == [15]


def test_what_cannot_be_deleted_takes_nothing_back(tmp_path: Path) -> None:
    """The checkpoint is complete, whatever becomes of the old ones."""
    bench = Bench(tmp_path, keep=1)
    bench.write(5)
    bench.store.failing[("delete", "step-00000005/")] = AWAY
    bench.write(10)
    assert bench.said.kinds()[-1] == ("CheckpointDone", 10)
    assert examine(bench.store, 10, semantic_hash=HASH)[1] == ""
    bench.store.failing.clear()
    bench.write(15)
    assert steps(bench.store) == [15]
