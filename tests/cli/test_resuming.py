"""What a resume puts aside before it starts anything."""

from dataclasses import replace
from pathlib import Path

from bamboo.checkpoint.catalogue import steps
from bamboo.checkpoint.directory import DirectoryStore
from cli.resuming import forget_passed_over
from tests.checkpoint.test_manifest import manifest

OURS = manifest().semantic_hash


def test_newer_checkpoints_go_unless_they_are_of_other_semantics(tmp_path: Path) -> None:
    objects = DirectoryStore(tmp_path)
    for step in (100, 200, 300, 400):
        one = manifest(step=step)
        if step == 300:
            one = replace(one, semantic_hash="another")
        objects.put_new(one.shards[0].name, b"x")
        if step != 400:  # torn
            objects.put_new(one.name, one.to_json().encode())
    objects.put_new("step-00000500/manifest.json", b"{")
    forget_passed_over(objects, after=100, semantic_hash=OURS)
    assert steps(objects) == [300, 100]
    assert len(objects.sizes("step-00000300/")) == 2
