"""Whether the same training gives the same bits, whatever else the card does and wherever tensors
lie; and whether four processes on the card give the bits of one."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.gpu_check.children import ChildFailed, beside
from benchmarks.gpu_check.jobs import Job, gpt
from benchmarks.gpu_check.part import Check, Group, play
from benchmarks.gpu_check.runs import launched, verified

CALM_S = 150.0
NEEDS_S = {False: 40.0, True: 90.0}
"""Of a calm run or a whole run; of a large one."""


def job_of(check: Check, precision: str, **train: Any) -> Job:
    """The job whose bits are compared."""
    large = {"layers": 12, "width": 768} if check.large and not check.small else {}
    return gpt(small=check.small, **large).on(check.device, precision).trained(**train)


def what_of(check: Check, precision: str) -> str:
    """The job in the names of figures."""
    model = job_of(check, precision).model
    return f"{model['layers']} x {model['width']}, {precision}"


def differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> int:
    """How many losses and tensors of two calm runs have other bits, or are in one of them only."""
    names = one["tensors"].keys() | other["tensors"].keys()
    tensors = sum(one["tensors"].get(name) != other["tensors"].get(name) for name in names)
    steps = range(max(len(one["losses"]), len(other["losses"])))
    losses = sum(one["losses"][i : i + 1] != other["losses"][i : i + 1] for i in steps)
    return tensors + losses


def calm(check: Check) -> None:
    """The calm reference in fresh processes."""
    for precision in check.precisions:
        _calm(check, precision)


def _calm(check: Check, precision: str) -> None:
    path = str(check.place.write(job_of(check, precision), f"bits-{precision}"))
    board, needs_s = check.board, NEEDS_S[check.large]
    what = what_of(check, precision)
    found: dict[str, dict[str, Any]] = {}

    def first() -> None:
        one = check.measure("calm", most_s=CALM_S, job=path, shuffled=False)
        _on_the_device(check, one)
        found["first"] = one
        board.add(f"{what}: digest of a calm run", one["digest"][:16])
        board.record(
            "digests",
            f"{board.card}: {what}",
            {
                "digest": one["digest"],
                "job": job_of(check, precision).text(),
                "data": one["data"],
                "numerics": one["numerics"],
                "precision": precision,
            },
        )

    def compared(name: str, shuffled: bool) -> None:
        other = check.measure("calm", most_s=CALM_S, job=path, shuffled=shuffled)
        _on_the_device(check, other)
        board.add(name, differing(found["first"], other), "differ", limit="differing")

    def loaded(name: str) -> None:
        with beside("busy", {"device": check.device}, timeout_s=120.0):
            compared(name, shuffled=False)

    board.attempt(f"{what}: digest of a calm run", first, needs_s=needs_s)
    lines = {
        f"{what}: another process": lambda name: compared(name, shuffled=False),
        f"{what}: beside a process that loads the card": loaded,
        f"{what}: allocations shuffled": lambda name: compared(name, shuffled=True),
    }
    for name, work in lines.items():
        if "first" not in found:
            board.not_run(name, "there is no first run to compare with", limit="differing")
            continue
        board.attempt(name, partial(work, name), needs_s=needs_s, limit="differing")


def _on_the_device(check: Check, found: Mapping[str, Any]) -> None:
    """Raise ChildFailed when the reference did not train where it was asked to."""
    wrong = [place for place in found["devices"] if not place.startswith(check.device)]
    if wrong:
        raise ChildFailed(f"the calm reference trained on {', '.join(wrong)}")


def processes(check: Check) -> None:
    """Four processes on the one card, and the verification of their run."""
    for precision in check.precisions:
        what = what_of(check, precision)
        name = f"{what}: four processes on one device, verify"

        def work(precision: str = precision, name: str = name, what: str = what) -> None:
            run = f"bits-{precision}"
            receipt = launched(check.place, job_of(check, precision), run)
            check.board.add(
                f"{what}: four processes, {receipt['steps']} steps", receipt["wall_s"], "s"
            )
            equal, first = verified(check.place, run)
            check.board.add(name, equal, first, limit="equal")

        check.board.attempt(name, work, needs_s=2 * NEEDS_S[check.large], limit="equal")


GROUPS: dict[str, Group] = {"calm": calm, "processes": processes}


def run(check: Check) -> None:
    """The part."""
    play(check, GROUPS)
