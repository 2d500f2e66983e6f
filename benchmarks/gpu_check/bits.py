"""Whether the same training gives the same bits, whatever else the card does and wherever tensors
lie; and whether four processes on the card give the bits of one."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from benchmarks.gpu_check.children import ChildFailed, beside, on_the_card
from benchmarks.gpu_check.facts import NO_CARD
from benchmarks.gpu_check.figures import cards_with
from benchmarks.gpu_check.jobs import Job, gpt, llama
from benchmarks.gpu_check.part import Check, Group, play
from benchmarks.gpu_check.runs import launched, logs, verified

SANITIZER = {"TORCH_CUDA_SANITIZER": "1"}
RACE = "detected a possible data race"
"""In what the sanitizer says of one."""
CALM_S = 150.0
NEEDS_S = {False: 20.0, True: 60.0}
"""Of a calm run or a whole run; of a large one."""


def job_of(check: Check, precision: str) -> Job:
    """The GPT whose bits are compared."""
    large = {"layers": 12, "width": 768} if check.large and not check.small else {}
    return gpt(small=check.small, **large).on(check.device, precision)


def what_of(job: Job) -> str:
    """A job in the names of figures."""
    model = job.model
    kind = "Llama" if "model" in model else "GPT"
    return f"{kind} {model['layers']} x {model['width']}, {job.train['precision']}"


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
        _calm(check, job_of(check, precision), f"bits-{precision}")


def llama_shape(check: Check) -> None:
    """The same of a model of a user's own: grouped keys, rotary positions, no biases."""
    job = llama(small=check.small).on(check.device, check.precisions[-1])
    _calm(check, job, "bits-llama")


def _calm(check: Check, job: Job, file: str) -> None:
    path = str(check.place.write(job, file))
    board, needs_s = check.board, NEEDS_S[check.large]
    what = what_of(job)
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
                "job": job.text(),
                "data": one["data"],
            },
        )
        cards = cards_with(one["digest"], board.kept())
        board.add(f"{what}: cards that gave this digest", len(cards))

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
        job = job_of(check, precision)
        what = what_of(job)
        name = f"{what}: four processes on one device, verify"

        def work(job: Job = job, name: str = name, what: str = what) -> None:
            run = f"bits-{job.train['precision']}"
            receipt = launched(check.place, job, run)
            steps = receipt["steps"]
            check.board.add(f"{what}: four processes, {steps} steps", receipt["wall_s"], "s")
            equal, first = verified(check.place, run)
            check.board.add(name, equal, first, limit="equal")

        check.board.attempt(name, work, needs_s=2 * NEEDS_S[check.large], limit="equal")


def races(check: Check) -> None:
    """Three steps of four processes under torch's CUDA sanitizer, and a race that it must see."""
    planted, none = "a planted race is seen by torch's sanitizer", "races in three steps"

    def sees() -> None:
        if not check.cuda:
            raise ChildFailed(NO_CARD)
        seen = check.measure("race", most_s=60.0, more=SANITIZER)["seen"]
        check.board.add(planted, bool(seen), limit="equal")

    def steps() -> None:
        if not check.cuda:
            raise ChildFailed(NO_CARD)
        job = job_of(check, check.precisions[-1]).trained(steps=3)
        try:
            with on_the_card(next(iter(SANITIZER))) as looked_at:
                launched(check.place, job, "races", **SANITIZER)
        except ChildFailed:
            if not _races(check):
                raise
        check.board.add("processes on the card under the sanitizer", len(looked_at))
        if not looked_at:
            raise ChildFailed("no process on the card was under the sanitizer")
        check.board.add(none, _races(check), limit="races")

    check.board.attempt(planted, sees, needs_s=15.0, limit="equal")
    check.board.attempt(none, steps, needs_s=40.0, limit="races")


def _races(check: Check) -> int:
    return sum(text.count(RACE) for text in logs(check.place, "races"))


GROUPS: dict[str, Group] = {
    "calm": calm,
    "processes": processes,
    "llama": llama_shape,
    "races": races,
}


def run(check: Check) -> None:
    """The part."""
    play(check, GROUPS)
