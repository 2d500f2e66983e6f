"""All benchmarks, or some by name, one after the other: `python -m benchmarks [PART ...]`.

Rule: each part is a process of its own and prints what it does as it does it. When its time is over
it is ended with everything that it started. A part that fails stops no other, and the table at the
end says so.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import parsed, trace_file
from benchmarks.measuring.report import RESULTS

ROOT = Path(__file__).resolve().parents[1]
TRACE = ROOT.parent / "shared" / "traces" / "bamboo-p3.csv"
FACTOR = 4.0
"""A part may take so many times as long as on two quiet cores."""
TO_END_S = 60.0
QUIET_LOAD, QUIET_WITHIN_S = 1.0, 240.0
"""The minute's load average takes three and a half minutes to fall from 32 busy processes to
one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One benchmark: its module, what it measures, and minutes on two quiet cores."""

    module: str
    about: str
    minutes: float
    traced: bool = False
    """Whether it plays the recorded market of p3 instances."""


PARTS = {
    "executor": Part(module="executor_vs_torch", about="beside torch's schedules", minutes=120),
    "bound": Part(module="virtual_bound", about="deep pipelines, 1F1B bound", minutes=10),
    "redundancy": Part(module="redundancy_overhead", about="each mode, calm", minutes=12),
    "failover": Part(module="failover_pause", about="from SIGKILL to going on", minutes=5),
    "peers": Part(module="failover_vs_peers", about="kills, beside torchft, torchrun", minutes=20),
    "hit-step": Part(module="hit_step", about="the step that a loss hits, by mode", minutes=4),
    "attack": Part(module="hit_step_under_attack", about="a loss, ports held", minutes=4),
    "elastic": Part(module="elastic", about="reconfigurations, checkpoints", minutes=6),
    "recovery": Part(module="recovery_at_size", about="losses and new layouts by size", minutes=14),
    "control-plane": Part(module="control_plane", about="what a decision costs", minutes=3),
    "store": Part(module="compare_and_set", about="until all know of a decision", minutes=1),
    "plan": Part(module="plan_vs_real", about="planned beside real steps", minutes=14),
    "traced": Part(module="traced_share", about="which architectures trace", minutes=4),
    "strategy-failover": Part(
        module="strategies.failover", about="pauses in every kind of exchange and ship", minutes=6
    ),
    "hf": Part(module="hf_failover", about="pauses of a Llama beside a GPT", minutes=3),
    "prepare": Part(module="prepare_rate", about="text into tokens", minutes=15),
    "bytes": Part(module="strategies.sent_bytes", about="what each strategy sends", minutes=5),
    "steps": Part(module="strategies.step_time", about="steps by strategy", minutes=90),
    "mixed": Part(
        module="strategies.mixed_job", about="the mixed job by tree and by auto", minutes=40
    ),
    "break-even": Part(module="break_even_k", about="where factors do not pay", minutes=2),
    "types": Part(module="cost_of_types", about="`bamboo cost` over all types", minutes=2),
    "modes": Part(module="mode_per_stage", about="a mode for each stage, modelled", minutes=4),
    "vgg19": Part(module="strategies.vgg19_22k", about="bytes of a VGG19, on paper", minutes=0.2),
    "search": Part(
        module="strategies.search_on_paper", about="strategies searched, on paper", minutes=3
    ),
    "live": Part(
        module="strategies.live_search", about="strategies tried in a run, modelled", minutes=2
    ),
    "nsdi23": Part(module="nsdi23", about="beside the published figures", minutes=4, traced=True),
    "waterfall": Part(
        module="waterfall", about="from the paper's rules to ours", minutes=4, traced=True
    ),
    "value": Part(
        module="value_on_trace", about="planned jobs on the trace", minutes=5, traced=True
    ),
    "simulated": Part(
        module="simulated_vs_real", about="the same job simulated", minutes=10, traced=True
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--list", action="store_true", help="name the parts, run none")
    parser.add_argument(
        "--trace", type=trace_file, default=TRACE, help="Bamboo's p3 trace, event CSV"
    )
    arguments = parsed(parser)
    unknown = [name for name in arguments.parts if name not in PARTS]
    if unknown:
        parser.error(f"there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    chosen = {name: PARTS[name] for name in arguments.parts or PARTS}
    for name, part in chosen.items():
        print(f"{name:14} about {part.minutes:3.0f} min  {part.about}")
    if arguments.list:
        return 0
    rows: list[tuple[str, str, float, str]] = []
    try:
        for name, part in chosen.items():
            rows.append((name, *played(part, arguments.trace)))
    finally:
        print(f"\n{'part':14} {'outcome':28} {'minutes':>8}  result")
        for name, outcome, minutes, result in rows:
            print(f"{name:14} {outcome:28} {minutes:8.1f}  {result}")
    return int(any(outcome not in ("done", "no trace") for _, outcome, _, _ in rows))


def played(part: Part, trace: Path) -> tuple[str, float, str]:
    """The result of a part, its minutes, and its new result file."""
    if part.traced and not trace.exists():
        return "no trace", 0.0, f"(give --trace; {trace.name} is not there)"
    wait_for_quiet()
    print(f"\n== {part.module}", flush=True)
    before = written()
    began_s = time.monotonic()
    words = ["--trace", str(trace)] if part.traced else []
    process = subprocess.Popen(
        [sys.executable, "-m", f"benchmarks.{part.module}", *words],
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        code: int | None = process.wait(FACTOR * 60 * part.minutes)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        end(process)
    outcome = {0: "done", None: "took too long, was ended"}.get(code, f"failed with {code}")
    new = sorted(name for name, when in written().items() if before.get(name) != when)
    said = [name + missed(RESULTS / name) for name in new]
    return outcome, (time.monotonic() - began_s) / 60, ", ".join(said) or "none"


def missed(result: Path) -> str:
    """How many of a result's claims are not met, in brackets; "" for a result without claims."""
    made = json.loads(result.read_text()).get("claims")
    if not made:
        return ""
    short = sum(not Claim(**claim).holds for claim in made)
    return f" ({short} of {len(made)} claims NOT REACHED)" if short else f" ({len(made)} claims)"


def wait_for_quiet() -> None:
    """Wait until the part before has left the load average, or for as long as that can take."""
    until_s = time.monotonic() + QUIET_WITHIN_S
    while os.getloadavg()[0] > QUIET_LOAD and time.monotonic() < until_s:
        time.sleep(1.0)


def written() -> dict[str, float]:
    """Result files and when they were written."""
    return {path.name: path.stat().st_mtime for path in RESULTS.glob("*.json")}


def end(process: "subprocess.Popen[bytes]") -> None:
    """End it with all of its session, even if it has ended itself: by request, then by force."""
    try:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(TO_END_S)
    finally:  # a second interrupt skips the wait
        for pid in in_session(process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait(TO_END_S)


def in_session(session: int) -> list[int]:
    """The processes of a session, in whatever group they are."""
    out = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has just ended
            # After the name, which may contain anything: state, parent, group, session.
            if int(file.read_text().rpartition(")")[2].split()[3]) == session:
                out.append(int(file.parent.name))
    return out


if __name__ == "__main__":
    sys.exit(main())
