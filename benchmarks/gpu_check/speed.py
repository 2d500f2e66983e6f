"""What being exact costs on the card: executor, determinism, eager mode, stash, copies."""

from typing import Any

from benchmarks.gpu_check.children import ChildFailed
from benchmarks.gpu_check.facts import NO_CARD
from benchmarks.gpu_check.jobs import Job, gpt, shape
from benchmarks.gpu_check.part import Check, Group, median, play
from benchmarks.gpu_check.runs import launched, step_times_s

SKIPPED = 2
STEPS = 8
LOOP_S = 25.0
LOAD_S, COMPILE_S = 60.0, 200.0
"""Of a loop before its first step: loading and building, and what a compiler takes beside."""
ROUNDS = {"12x1024": 2, "24x2048": 1}
PRODUCTS = 30
"""Of 4096 x 4096, in an operation that copies are to hide behind."""
BOUNDARY_MIB = (8, 64)
"""Of a microbatch between two stages: bf16 of 12 x 1024, and fp32 of 24 x 2048."""


def loop_tokens_per_s(check: Check, job: Job, name: str, *, strict: bool, compiled: bool) -> float:
    """A plain loop over the job's microbatches, in a fresh process. Raises ChildFailed."""
    # The loop takes its precision from `bf16`, so its job need not be one of the device.
    asked: dict[str, Any] = {
        "job": str(check.place.write(job.on("cpu", "fp32"), name)),
        "bf16": job.train["precision"] == "bf16",
        "strict": strict,
        "compiled": compiled,
        "steps": 4 if check.small else STEPS,
        "skipped": 1 if check.small else SKIPPED,
        "limit_s": LOOP_S,
    }
    most_s = LOOP_S + LOAD_S + (COMPILE_S if compiled else 0.0)
    found = check.measure("loop", most_s=most_s, **asked)
    return float(found["tokens"] / median(found["step_s"]))


def run_tokens_per_s(check: Check, job: Job, name: str) -> float:
    """A run of this job by real processes. Raises ChildFailed."""
    steps = 6 if check.small else STEPS
    launched(check.place, job.trained(steps=steps), name)
    tokens = int(job.train["batch"]) * int(job.model["context"])
    return tokens / median(step_times_s(check.place, name, SKIPPED))


def one_node(job: Job) -> Job:
    """The job on one node."""
    return job.within(stages=1, redundancy="off")


def executor(check: Check) -> None:
    """A run of one node beside a plain loop, in turns, on the same card."""
    for name in ("12x1024",) if check.small else ("12x1024", "24x2048"):
        for precision in reversed(check.precisions):
            what = f"{name}, {precision}: one node over a plain loop"
            job = shape(name, small=check.small).on(check.device, precision)

            def work(job: Job = job, what: str = what, name: str = name) -> None:
                ratios, tag = [], f"{name}-{job.train['precision']}"
                for number in range(1 if check.small else ROUNDS[name]):
                    run = run_tokens_per_s(check, one_node(job), f"run-{tag}-{number}")
                    loop = loop_tokens_per_s(
                        check, job, f"loop-{tag}-{number}", strict=True, compiled=False
                    )
                    ratios.append(run / loop)
                check.board.add(what, median(ratios), limit="executor")

            check.board.attempt(what, work, needs_s=40.0 if check.small else 90.0, limit="executor")


def exactness(check: Check) -> None:
    """A Llama of 1 B parameters: compiled and free, eager and free, eager and strict, and a run."""
    precision = check.precisions[-1]
    job = shape("llama-1b", small=check.small).on(check.device, precision)
    found: dict[str, float] = {}
    lines = (
        ("eager, strict", {"strict": True, "compiled": False}),
        ("eager, not deterministic", {"strict": False, "compiled": False}),
        ("compiled, not deterministic", {"strict": False, "compiled": True}),
    )
    for about, how in lines:
        name = f"Llama 1 B, {precision}: a loop, {about}"

        def loop(about: str = about, name: str = name, how: dict[str, bool] = how) -> None:
            if check.small and how["compiled"]:
                raise ChildFailed("compiling takes longer than all else that is small")
            found[about] = loop_tokens_per_s(check, job, f"llama-{len(found)}", **how)
            check.board.add(name, found[about], "tokens/s")

        check.board.attempt(name, loop, needs_s=20.0)

    def a_run() -> None:
        found["run"] = run_tokens_per_s(check, one_node(job), "llama-run")
        check.board.add(f"Llama 1 B, {precision}: a run of one node", found["run"], "tokens/s")

    check.board.attempt(f"Llama 1 B, {precision}: a run of one node", a_run, needs_s=60.0)
    for about, over, under, limit in (
        ("the price of exactness, run over the fastest loop", "run", lines[2][0], "exactness"),
        ("of it executor, run over the strict loop", "run", lines[0][0], ""),
        ("of it determinism, strict over not", lines[0][0], lines[1][0], ""),
        ("of it eager mode, eager over compiled", lines[1][0], lines[2][0], ""),
    ):
        name = f"Llama 1 B, {precision}: {about}"
        if over in found and under in found:
            check.board.add(name, found[over] / found[under], limit=limit)
        else:
            check.board.not_run(name, "one of the two was not measured", limit=limit)


def stash(check: Check) -> None:
    """Four processes on the one card, with a stash and without, in turns."""
    name = "a step with `stash` over one with `off`, less 1"
    steps = 6 if check.small else 40
    job = gpt(small=check.small).trained(steps=steps).on(check.device, check.precisions[0])

    def work() -> None:
        times: dict[str, list[float]] = {"off": [], "stash": []}
        for number in range(1 if check.small else 2):
            for mode in times:
                run = f"stash-{mode}-{number}"
                launched(check.place, job.within(redundancy=mode), run)
                times[mode] += step_times_s(check.place, run, SKIPPED)
        check.board.add("a step with `off`, four processes", 1e3 * median(times["off"]), "ms")
        check.board.add(name, median(times["stash"]) / median(times["off"]) - 1, limit="stash")

    check.board.attempt(name, work, needs_s=40.0 if check.small else 120.0, limit="stash")


def copies(check: Check) -> None:
    """Boundary tensors through pinned memory, as a worker copies them, against the fastest copy of
    any size; and whether such copies hide behind operations."""
    names = {"fetch": "card to pinned", "put": "pinned to card"}
    about = "copies of a worker over the ceiling"
    hides = "share of a worker's copies that hides behind operations"

    def work() -> None:
        if not check.cuda:
            raise ChildFailed(NO_CARD)
        most = check.measure("ceiling", most_s=120.0, mib=[*BOUNDARY_MIB, 512])["gb_per_s"]
        job = gpt(small=check.small).on(check.device, "fp32")
        path = str(check.place.write(job, "room"))
        found = check.measure("room", most_s=120.0, job=path, mib=BOUNDARY_MIB, products=PRODUCTS)
        for verb, direction in names.items():
            ceiling = max(most[direction].values())
            check.board.add(f"the fastest copy, {direction}", ceiling, "GB/s")
            for mib in BOUNDARY_MIB:
                share = found["gb_per_s"][verb][str(mib)] / ceiling
                check.board.add(f"a worker's `{verb}` of {mib} MiB", share, limit="copies")
        check.board.add(f"a copy of {BOUNDARY_MIB[-1]} MiB", 1e3 * found["copy_s"], "ms")
        check.board.add("an operation beside it", 1e3 * found["operation_s"], "ms")
        check.board.add(hides, found["hidden"], limit="hidden")

    check.board.attempt(about, work, needs_s=15.0, limit="copies")


GROUPS: dict[str, Group] = {
    "copies": copies,
    "exactness": exactness,
    "executor": executor,
    "stash": stash,
}


def run(check: Check) -> None:
    """The part."""
    play(check, GROUPS)
