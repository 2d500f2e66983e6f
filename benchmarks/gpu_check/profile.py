"""`bamboo profile` of known shapes on the card: kept for the planner, with the share of the card's
published speed that their layers reach."""

from collections.abc import Mapping
from typing import Any

from bamboo.config.catalogue import load_gpus
from benchmarks.gpu_check.children import ChildFailed
from benchmarks.gpu_check.facts import NO_CARD
from benchmarks.gpu_check.jobs import Job, shape
from benchmarks.gpu_check.part import Check, Group, play

SHAPES = ("gpt2-medium", "bert-large", "llama-1b")
SECONDS = 12
STEPS = 3
"""Of the run whose memory is measured."""


def flops(profile: Mapping[str, Any]) -> float:
    """Floating-point operations of the products of forward and backward of a microbatch."""
    work = (layer[kind] for layer in profile["layers"] for kind in ("forward", "backward"))
    return sum(float(one["product_flops"]) for one in work)


def seconds(profile: Mapping[str, Any]) -> float:
    """Seconds of forward and backward of a microbatch, all layers."""
    return sum(float(x["forward_s"]) + float(x["backward_s"]) for x in profile["layers"])


def peak_tflops(card: str, precision: str) -> float:
    """The published speed of dense products of a card, by the catalogue; 0: it is not in there."""
    for name, gpu in load_gpus().gpus.items():
        if name.lower() in card.lower().replace(" ", "-").split("-"):
            return gpu.bf16_tflops if precision == "bf16" else gpu.fp32_tflops
    return 0.0


def profiles(check: Check) -> None:
    """Each shape in each precision."""
    for name in SHAPES[:1] if check.small else SHAPES:
        for precision in reversed(check.precisions):
            _profile(check, name, precision)


def _profile(check: Check, name: str, precision: str) -> None:
    what = f"{name}, {precision}"
    job = shape(name, small=check.small).on(check.device, precision)
    about = f"{what}: forward and backward of a microbatch"

    def work() -> None:
        path = check.place.write(job, f"profile-{name}-{precision}")
        words = ("--seconds", "5" if check.small else str(SECONDS), "--fresh")
        found = check.place.command("profile", str(path), "--device", check.device, *words)
        profile = found["profile"]
        check.board.add(about, 1e3 * seconds(profile), "ms")
        reached = flops(profile) / seconds(profile) / 1e12
        check.board.add(f"{what}: products of forward and backward", reached, "TFLOP/s")
        check.board.record("profiles", what, {"profile": profile})
        peak = peak_tflops(profile["device"], precision)
        use = f"{what}: model-FLOP utilisation"
        if peak:
            check.board.add(use, reached / peak, f"of {peak:g} TFLOP/s")
        else:
            check.board.not_run(use, f"{profile['device']} is not in the catalogue of GPUs")

    check.board.attempt(about, work, needs_s=10.0 if check.small else 2.0 * SECONDS)


def memory(check: Check) -> None:
    """The plan's bytes of one node beside the allocator's peak."""
    for precision in reversed(check.precisions):
        what = f"12x1024, {precision}"
        job = shape("12x1024", small=check.small).on(check.device, precision)
        one = job.within(stages=1, redundancy="off").trained(steps=STEPS)
        name = f"{what}: the plan's bytes over the allocator's peak, off by"

        def work(one: Job = one, what: str = what, name: str = name) -> None:
            path = str(check.place.write(one, f"memory-{one.train['precision']}"))
            (planned,) = check.place.command("plan", path)["memory"]
            found = check.measure("memory", most_s=120.0, job=path)
            if not check.cuda:
                raise ChildFailed(NO_CARD)
            check.board.add(f"{what}: peak of the allocator", found["allocated"] / 2**30, "GiB")
            off = abs(planned["total"] / found["allocated"] - 1)
            check.board.add(name, off, limit="formula")
            over = found["reserved"] / found["allocated"]
            check.board.add(f"{what}: reserved over allocated", over, limit="reserved")

        check.board.attempt(name, work, needs_s=30.0, limit="formula")


GROUPS: dict[str, Group] = {"shapes": profiles, "memory": memory}


def run(check: Check) -> None:
    """The part."""
    play(check, GROUPS)
