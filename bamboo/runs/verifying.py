"""What can be checked of a run, and the checks: all bits, a segment of steps, the samples.

Rule: each trains or reads again in a process of its own; what cannot be compared is refused before.
The decisions are checked in `decisions`.
"""

from typing import Any

from bamboo import wiring
from bamboo.errors import InputError
from bamboo.ports import Told
from bamboo.runs import final_state, lock
from bamboo.runs.run_folder import RunFolder


def check_bits(folder: RunFolder, *, told: Told) -> dict[str, Any]:
    """Train the run again calmly and compare every bit of its losses and its final state; `equal`
    and `first_difference` are the result. Raises InputError where there is nothing to compare."""
    check_ended(folder)
    return wiring.run_verify(folder.path, told=told)


def check_segment(folder: RunFolder, first: int, stop: int, *, told: Told) -> dict[str, Any]:
    """As `check_bits` for the steps from `first` to `stop` - 1 alone, from the newest checkpoint at
    or before `first`. Raises InputError."""
    return wiring.run_verify(folder.path, told=told, segment=(first, stop))


def check_samples(folder: RunFolder, *, told: Told) -> dict[str, Any]:
    """Check that each sample of the run was used exactly once. Raises InputError."""
    _check_receipt(folder)
    return {"run": folder.id, **wiring.run_verify(folder.path, told=told, samples=True)}


def check_ended(folder: RunFolder) -> None:
    """Raise InputError where there is no final state to compare."""
    if folder.final_manifest.exists():
        return
    _check_receipt(folder)
    receipt = folder.read_json(folder.receipt)
    outcome = receipt["outcome"]
    if why := final_state.bring_late(folder, receipt):
        raise InputError(f"run {folder.id} ended {outcome}: {why}")
    if folder.final_manifest.exists():
        return
    raise InputError(
        f"run {folder.id} ended {outcome} without a final state; only a run that ended in order "
        "(done, stopped at a step boundary, budget) can be verified"
    )


def _check_receipt(folder: RunFolder) -> None:
    """Raise InputError where the run has not ended, as far as its folder shows."""
    if not folder.receipt.exists():
        lock.refuse_while_led(folder)
        raise InputError(
            f"run {folder.id} has no receipt and no launcher: it goes on without one, or was "
            f"killed; `bamboo status {folder.id}` says which, and verify works once a "
            "run has ended in order"
        )
