"""The end of what a run holds in an account, by its tag alone.

Rule: neither store nor launcher nor run folder is needed, and to do it again does no harm. What a
launcher that lives would start again is not ended under its hands: it is to be ended first.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from bamboo.errors import BambooError
from bamboo.ids import RunId
from cli import lock, wiring
from cli.runs import RunFolder
from cli.views.quantities import count
from cloud.fleet import Fleet
from cloud.provider import Held, HeldKind, Provider

DEADLINE_S = 300.0
"""A GPU instance takes minutes to shut down, and its volumes go with it."""


def end_in_account(
    run: RunId,
    region: str,
    *,
    folder: Path | None,
    note: Callable[[str], None],
    account: Callable[[str], Provider] = wiring.account,
    deadline_s: float = DEADLINE_S,
) -> str:
    """End everything of a run in a region and see that it is gone; what to say of it. `folder`:
    the run's, where it is known. Raises BambooError where a launcher of it lives, StillLive,
    CloudRefused, CloudUnavailable."""
    if folder is not None and not lock.is_free(RunFolder(id=run, path=folder)):
        raise BambooError(
            f"run {run} has a launcher that lives and would start again what is ended here; "
            f"interrupt it, then `bamboo stop {run}` once more"
        )
    provider = account(region)
    before = provider.held(run)
    if before:
        note(f"{run}: ending {_names(before)} in {region}")
    with TemporaryDirectory() as elsewhere:
        intents = (folder or Path(elsewhere)) / "intents.jsonl"
        fleet = Fleet(provider, run=run, intents=intents)
        fleet.terminate_all(deadline_s=deadline_s, waiting=note, to_the_last=True)
    if not before:
        return f"nothing of it is left in {region}"
    return f"{_names(before)} ended in {region}; nothing of it is left"


def runs_in_account(
    region: str, *, account: Callable[[str], Provider] = wiring.account
) -> tuple[RunId, ...]:
    """Whoever holds anything there, by tag."""
    return tuple(sorted({one.run for one in account(region).held(None) if one.run}))


def _names(held: Sequence[Held]) -> str:
    """`2 instances, 1 volume`."""
    counted = Counter(one.kind for one in held)
    return ", ".join(count(counted[kind], kind.value) for kind in HeldKind if counted[kind])
