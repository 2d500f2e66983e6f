"""Which checkpoints are deleted: by count and by age, but never the newest good one, and what was
left half written before it.

Rule: the choice is a pure function. The manifest is deleted first, so that an interrupted deletion
leaves a torn checkpoint and never one that looks complete.
"""

from collections.abc import Collection, Mapping

from bamboo.checkpoint.manifest import CONSTANT, MANIFEST, folder_of, step_of
from bamboo.ports import ObjectStore


def choose(
    *,
    created_at_s: Mapping[int, float],
    torn: Collection[int],
    newest_good: int,
    keep: int,
    keep_s: float,
    now_s: float,
) -> tuple[int, ...]:
    """The steps to delete, oldest first.

    `created_at_s`: complete checkpoints by step. It keeps the newest good one and, of the complete
    ones, the `keep` newest and all that are younger than `keep_s` (0: age keeps none). Torn ones
    are deleted when they are older than the newest good one: a newer one may still be being
    written.
    """
    newest = set(sorted(created_at_s, reverse=True)[: max(keep, 1)])
    young = {step for step, at_s in created_at_s.items() if now_s - at_s < keep_s}
    kept = newest | young | {newest_good}
    old = {step for step in created_at_s if step not in kept}
    return tuple(sorted(old | {step for step in torn if step < newest_good}))


def delete(store: ObjectStore, step: int) -> None:
    """Delete a checkpoint. Raises StorageUnavailable; calling it again does no harm."""
    folder = folder_of(step)
    store.delete(f"{folder}/{MANIFEST}")
    for name in (*store.sizes(f"{folder}/"), *store.strays(f"{folder}/")):
        store.delete(name)


def sweep(store: ObjectStore, *, before: int, spare: Collection[int]) -> None:
    """Delete what killed writers left of checkpoints before that step, which is complete, except of
    those in `spare`, which are another run's. Nobody waits for what is still written there. Raises
    StorageUnavailable.

    What is constant belongs to no step. All of it is stored, because one checkpoint is complete,
    and nobody writes it again; only another run would.
    """
    for name in store.strays(""):
        step = step_of(name)
        constant = name.startswith(CONSTANT) and not spare
        if constant or (step is not None and step < before and step not in spare):
            store.delete(name)
