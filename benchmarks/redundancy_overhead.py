"""What each redundancy mode costs when nothing fails: time, bytes on the wire and memory.

    python -m benchmarks.redundancy_overhead [--rounds 6] [--steps 8] [--parts fast,xl,wide]

All on the virtual device, modes interleaved round by round, ratios to `off` of the same round with
the 95 % interval of their median (below six rounds: their range; all but `fast` get `--more`).
`fast`: four stages, a link without a limit; equal stages take 20 ms forward and 40 ms backward,
memory-balanced (later-heavier) ones 14, 18, 22, 26 and twice that. `xl`: equal stages on links as
slow, in relation to the computation, as 2.5 and 10 Gbps are for GPT-2 XL on V100s (modelled;
`benchmarks.measuring.wire_formula` derives it). `wide`: four pipelines of four stages, 16
processes, so that operations take four times as long for two cores to keep up.

Operations really compute, in less than their given time; overruns are counted and printed. Bytes
are those of whole frames, counted where they are handed to ZeroMQ, and are compared with the
formula's.
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from bamboo.config.catalogue import load_gpus
from bamboo.config.resolve import batch_shape, resolve
from bamboo.config.tree import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.planner.layers.facts import FLOAT_BYTES, gpt_facts
from bamboo.planner.step.figures import bound_s
from bamboo.planner.step.layout import Costs, layout_of
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import REDUNDANCY_MODES
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.local_run import LEAST_STEPS, step_times_s
from benchmarks.measuring.options import at_least, chosen, parsed
from benchmarks.measuring.report import (
    command_of,
    in_turn,
    interval_name,
    median_and_quartiles,
    median_with_interval,
    paired_ratios,
    write_result,
)
from benchmarks.measuring.wire_formula import (
    TENSOR_KINDS,
    as_slow_gbps,
    slowness,
    wire_bytes,
    xl_slowness,
)

STAGES_MS = {
    "equal": (20.0, 20.0, 20.0, 20.0),
    "later-heavier": (14.0, 18.0, 22.0, 26.0),
}
"""Forward; a backward takes twice that."""
STAGES, MICROBATCHES = 4, 8
MODEL = ModelConfig(layers=4, width=128, heads=4, context=64)
"""So wide that headers are small compared with tensors, and with GPT-2 XL's ratio of gradients to
boundaries over a step of this many stages and microbatches."""
CUT = (0, 2, 3, 4, 6)
PARTS = ("fast", "xl", "wide")
WIDE = 4
"""Number of pipelines, and factor on the times of operations."""
LINKS_GBPS = (10.0, 2.5)
LIMITS = {("equal", "stash"): 1.01, ("equal", "gap"): 1.025, ("later-heavier", "eager"): 1.05}
"""Largest ratio to `off`, on a fast link and with one pipeline."""
BYTES_LIMIT = 0.01
"""Largest deviation of the sent bytes from the formula, everywhere."""
MB = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The conditions under which all modes are compared."""

    name: str
    shape: str
    pipelines: int = 1
    slow: float = 1.0
    gbps: float = 0.0
    """Bandwidth of the virtual link; 0: no limit."""

    @property
    def modes(self) -> tuple[str, ...]:
        """The modes that differ here: without another pipeline `peer` is `off`."""
        return tuple(m for m in REDUNDANCY_MODES if m != "peer" or self.pipelines > 1)


def fast(shape: str) -> str:
    """The setting of these stages on a link without a limit."""
    return f"{shape}, fast link"


def settings(parts: Sequence[str]) -> list[Setting]:
    """The settings of the parts that were asked for."""
    out = []
    if "fast" in parts:
        out += [Setting(name=fast(shape), shape=shape) for shape in STAGES_MS]
    if "xl" in parts:
        out += [
            Setting(name=f"equal, as XL at {gbps:g} Gbps", shape="equal", gbps=like_xl_gbps(gbps))
            for gbps in LINKS_GBPS
        ]
    if "wide" in parts:
        wide = {"shape": "equal", "pipelines": WIDE, "slow": float(WIDE)}
        out.append(Setting(name="4 x 4, fast link", **wide))
        out += [
            Setting(name=f"4 x 4, as XL at {gbps:g} Gbps", **wide, gbps=like_xl_gbps(gbps) / WIDE)
            for gbps in LINKS_GBPS
        ]
    return out


def like_xl_gbps(gbps: float) -> float:
    """The virtual link between equal stages of 20 ms that is as slow as `gbps` for GPT-2 XL."""
    boundary = xl_slowness(gbps, load_gpus()).boundary
    return as_slow_gbps(
        boundary, boundary_bytes=boundary_bytes(), forward_s=STAGES_MS["equal"][0] / 1e3
    )


def like_xl_ship(gbps: float) -> tuple[float, float]:
    """(here, GPT-2 XL): a gradient's time on that link over a step's; the two are only similar."""
    forward_s = STAGES_MS["equal"][0] / 1e3
    here = slowness(
        gbps=like_xl_gbps(gbps),
        boundary_bytes=boundary_bytes(),
        gradient_bytes=max(gradient_bytes()),
        forward_s=forward_s,
        backward_s=2 * forward_s,
        stages=STAGES,
        microbatches=MICROBATCHES,
    )
    return here.ship, xl_slowness(gbps, load_gpus()).ship


def boundary_bytes() -> int:
    """Bytes of one microbatch, which is one sequence."""
    return MODEL.context * MODEL.width * FLOAT_BYTES


def gradient_bytes() -> list[int]:
    """Bytes of each stage."""
    facts = gpt_facts(
        layers=MODEL.layers,
        width=MODEL.width,
        context=MODEL.context,
        vocabulary=MODEL.vocabulary,
        microbatch=1,
        dropout=MODEL.dropout,
    )
    stages = [facts[a:b] for a, b in itertools.pairwise(CUT)]
    return [FLOAT_BYTES * sum(layer.parameters for layer in layers) for layers in stages]


def job(setting: Setting, mode: str, steps: int) -> JobConfig:
    """The job of one variant."""
    forward = tuple(setting.slow * ms for ms in STAGES_MS[setting.shape])
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        model=MODEL,
        data=DataConfig(max_bytes=200_000),
        train=TrainConfig(steps=steps, batch=MICROBATCHES * setting.pipelines, microbatch=1),
        cluster=ClusterConfig(
            pipelines=setting.pipelines,
            stages=STAGES,
            cut=CUT[:-1],
            redundancy=mode,
            device="virtual",
            virtual_forward_ms=forward,
            virtual_backward_ms=tuple(2 * ms for ms in forward),
            virtual_link_gbps=setting.gbps,
        ),
    )


def bound_ms(setting: Setting) -> float:
    """The step time that no 1F1B order can beat."""
    grid = Grid(pipelines=setting.pipelines, stages=STAGES)
    forward_s = [setting.slow * ms / 1e3 for ms in STAGES_MS[setting.shape]]
    costs = Costs.of(STAGES, forward_s=forward_s, backward_s=[2 * s for s in forward_s])
    each = [MICROBATCHES] * setting.pipelines
    return 1e3 * bound_s(layout_of(grid, microbatches=each, mode="off"), costs)


def formula(setting: Setting, mode: str) -> dict[str, float]:
    """Bytes of a step by kind."""
    grid = Grid(pipelines=setting.pipelines, stages=STAGES)
    return wire_bytes(
        grid,
        mode=mode,
        virtual_nodes=batch_shape(resolve(job(setting, mode, 1))).virtual_nodes,
        microbatches=MICROBATCHES,
        boundary_bytes=boundary_bytes(),
        gradient_bytes=gradient_bytes(),
    )


@dataclass(slots=True, kw_only=True)
class Found:
    """The results of one mode's rounds."""

    step_ms: list[float]
    sent_bytes: dict[str, float]
    """Bytes of a step, by kind, in the last round; rounds differ only in acknowledgements."""
    most_bytes: int = 0
    """Bytes of tensors on the node that held most."""
    overruns: int = 0


def one_round(setting: Setting, mode: str, steps: int, found: Found) -> None:
    """Run it once and note the result."""
    times, memory = step_times_s(job(setting, mode, steps))
    found.step_ms.append(1e3 * median_and_quartiles(times)[0])
    last: dict[str, Any] = {str(record["node"]): record for record in memory}
    found.sent_bytes = {}
    for record in last.values():
        for kind, size in record["sent_bytes"].items():
            found.sent_bytes[kind] = found.sent_bytes.get(kind, 0.0) + size / steps
        found.most_bytes = max(found.most_bytes, record["peak_tensor_bytes"])
        found.overruns += record["overruns"]


def table(setting: Setting, found: dict[str, Found]) -> dict[str, Any]:
    """Print a setting's table. Returns what the result keeps of it."""
    print(
        f"\n{setting.name}: 1F1B bound {bound_ms(setting):.0f} ms"
        + (f", virtual link of {1e3 * setting.gbps:.1f} Mbps" if setting.gbps else "")
    )
    between = interval_name(len(found["off"].step_ms))
    print(
        f"  {'mode':6} {'ms/step':>8} {'over off':>9} {between:>17} {'MB/step':>8} "
        f"{'formula':>8} {'over it':>8} {'most MB':>8} {'overruns':>9}"
    )
    rows: dict[str, Any] = {}
    for mode, one in found.items():
        ratio, low, high = median_with_interval(paired_ratios(one.step_ms, found["off"].step_ms))
        expected = formula(setting, mode)
        sent, wanted = sum(one.sent_bytes.values()), sum(expected.values())
        middle = median_and_quartiles(one.step_ms)[0]
        print(
            f"  {mode:6} {middle:8.1f} {ratio - 1:+9.2%} {low - 1:+8.2%}-{high - 1:+8.2%} "
            f"{sent / MB:8.3f} {wanted / MB:8.3f} {sent / wanted - 1:+8.2%} "
            f"{one.most_bytes / MB:8.2f} {one.overruns:9d}"
        )
        rows[mode] = {
            "ms_per_step": one.step_ms,
            "ratio_to_off": [ratio, low, high],
            "sent_bytes": one.sent_bytes,
            "formula_bytes": expected,
            "most_bytes": one.most_bytes,
            "overruns": one.overruns,
        }
    say_apart(found["full"].sent_bytes, formula(setting, "full"))
    say_winners(rows)
    return {"bound_ms": bound_ms(setting), "gbps": setting.gbps, "modes": rows}


def claims(tables: dict[str, Any]) -> list[Claim]:
    """The claims on the settings that were played."""
    out = []
    for (shape, mode), limit in LIMITS.items():
        if (found := tables.get(fast(shape))) is not None:
            ratio, low, high = found["modes"][mode]["ratio_to_off"]
            about = f"{fast(shape)}: {mode} over off"
            out.append(Claim(about=about, found=ratio, limit=limit, interval=(low, high)))
    apart = {
        f"{name}, {mode}": abs(
            sum(row["sent_bytes"].values()) / sum(row["formula_bytes"].values()) - 1
        )
        for name, found in tables.items()
        for mode, row in found["modes"].items()
    }
    worst = max(apart, key=lambda name: apart[name])
    about = f"bytes beside the formula, at worst ({worst})"
    return [*out, Claim(about=about, found=apart[worst], limit=BYTES_LIMIT)]


def say_apart(sent: dict[str, float], expected: dict[str, float]) -> None:
    """Print the kinds of `full`, which has all: tensors next to the formula, and the others."""
    words = [
        f"{kind} {sent.get(kind, 0.0) / expected[kind] - 1:+.2%}"
        for kind in TENSOR_KINDS
        if expected[kind]
    ]
    rest = sum(size for kind, size in sent.items() if kind not in TENSOR_KINDS)
    print(f"  by kind over the formula: {', '.join(words)}; others {rest / 1e3:.1f} KB a step")


def say_winners(rows: dict[str, Any]) -> None:
    """Print where each mode is worth its time: which protect for at most 1 %, what the others
    cost."""
    over = {m: r["ratio_to_off"][0] - 1 for m, r in rows.items() if m != "off"}
    free = [mode for mode, share in over.items() if share <= 0.01]
    dear = [f"{mode} {share:+.1%}" for mode, share in over.items() if share > 0.01]
    print(f"  within 1 %: {', '.join(free) or 'none'}; beyond: {', '.join(dear) or 'none'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(1), default=6, help="of `fast`")
    parser.add_argument("--more", type=at_least(1), default=1, help="rounds of the others")
    parser.add_argument("--steps", type=at_least(LEAST_STEPS), default=8)
    parser.add_argument("--parts", default=",".join(PARTS))
    arguments = parsed(parser)
    parts = chosen(parser, "part", arguments.parts, PARTS)
    body: dict[str, Any] = {}
    for gbps in LINKS_GBPS:
        here, there = like_xl_ship(gbps)
        print(
            f"as GPT-2 XL at {gbps:g} Gbps: a boundary takes "
            f"{xl_slowness(gbps, load_gpus()).boundary:.2f} forwards, a gradient {here:.2f} steps "
            f"({there:.2f} there; modelled)"
        )
    for setting in settings(parts):
        found = {mode: Found(step_ms=[], sent_bytes={}) for mode in setting.modes}
        is_fast = setting.name in map(fast, STAGES_MS)
        for number in range(arguments.rounds if is_fast else arguments.more):
            for mode in in_turn(setting.modes, number):
                one_round(setting, mode, arguments.steps, found[mode])
            said = ", ".join(f"{mode} {one.step_ms[-1]:.0f}" for mode, one in found.items())
            print(f"{setting.name}, round {number}: {said} ms", flush=True)
        body[setting.name] = table(setting, found)
    made = claims(body)
    print("\n".join(["", *(claim.line() for claim in made)]))
    command = command_of("redundancy_overhead", arguments)
    part = "" if parts == list(PARTS) else arguments.parts
    said = {"claims": [asdict(claim) for claim in made], **body}
    print(f"written: {write_result('redundancy-overhead', command, said, part).name}")


if __name__ == "__main__":
    main()
