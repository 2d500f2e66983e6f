"""What is deleted: never the newest good checkpoint, never one that is still being written."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.retention import choose, delete

STEPS = st.dictionaries(st.integers(0, 50), st.floats(0, 1000), min_size=1)


@given(STEPS, st.sets(st.integers(51, 99)), st.integers(0, 6), st.floats(0, 500), st.data())
def test_what_must_stay_stays(
    created: dict[int, float], torn: set[int], keep: int, keep_s: float, data: st.DataObject
) -> None:
    good = data.draw(st.sampled_from(sorted(created)))
    old_torn = {step - 51 for step in torn} - created.keys()
    gone = choose(
        created_at_s=created,
        torn=torn | old_torn,
        newest_good=good,
        keep=keep,
        keep_s=keep_s,
        now_s=1000.0,
    )
    assert good not in gone
    assert list(gone) == sorted(set(gone))
    assert not torn.intersection(gone), "newer than every complete one: still being written"
    newest = sorted(created, reverse=True)[: max(keep, 1)]
    assert not set(newest).intersection(gone)
    for step, at_s in created.items():
        young = 1000.0 - at_s < keep_s
        assert (step in gone) == (step not in newest and not young and step != good)
    assert all((step in gone) == (step < good) for step in old_torn)


def test_a_deleted_checkpoint_is_gone_with_all_it_had(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    for name in ("step-00000001/manifest.json", "step-00000001/gen-000001/stage-00.safetensors"):
        assert store.put_new(name, b"x")
    assert store.put_new("step-00000002/manifest.json", b"x")
    # Of a writer that was killed.
    (tmp_path / "step-00000001/gen-000001/.aside-1").write_bytes(b"half")
    (tmp_path / "step-00000001/gen-000002").mkdir()
    (tmp_path / "step-00000001/gen-000002/.aside-2").write_bytes(b"half")
    delete(store, 1)
    delete(store, 1)
    assert set(store.sizes("")) == {"step-00000002/manifest.json"}
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
