"""The plan of a launch on paper: grid, cut, shadows, memory, instances, price, what it survives."""

import json
from collections.abc import Mapping
from typing import Any

from bamboo.planner.memory import StageBytes
from bamboo.planner.plan import Plan
from bamboo.topology.slots import Slot
from cli.planning import Planned
from cli.views.quantities import columns, count, duration, rate, size, usd

PURPOSES = (
    "parameters", "gradients", "moments", "partials", "activations", "stash", "replica",
    "shipping", "ahead",
)  # fmt: skip


def plan_text(run: str, planned: Planned, *, modelled: bool) -> str:
    """All of the plan but the requests."""
    plan = planned.plan
    semantics = planned.strategy.semantics
    lines = [
        f"{run}: {count(semantics.steps, 'step')} of {count(semantics.batch, 'sample')} on a grid "
        f"{plan.grid.pipelines} x {plan.grid.stages} (pipelines x stages), redundancy {plan.mode}",
        f"  {plan.parameters:,} parameters in {count(plan.cut[-1], 'layer')}, "
        f"{count(semantics.virtual_nodes, 'virtual node')}, semantics {semantics.hash()}",
        *_stages(plan),
        "  memory per node, an upper bound in fp32",
        *_memory(plan),
        *_price(planned, modelled=modelled),
        *_time(planned),
        *(f"  {note}" for note in plan.notes),
    ]
    return "\n".join(lines)


def _stages(plan: Plan) -> list[str]:
    rows = [("stage", "layers", "shadowed by the node of")]
    for stage in range(plan.grid.stages):
        first, stop = plan.cut[stage], plan.cut[stage + 1]
        layers = str(first) if stop == first + 1 else f"{first} to {stop - 1}"
        protector = plan.grid.protector(Slot(pipeline=0, stage=stage))
        shadow = "nobody" if plan.mode == "off" else f"stage {protector.stage}"
        rows.append((str(stage), layers, shadow))
    return columns(rows, indent=4, right=frozenset({0}))


def _memory(plan: Plan) -> list[str]:
    shown = [purpose for purpose in PURPOSES if any(getattr(s, purpose) for s in plan.memory)]
    rows: list[tuple[str, ...]] = [("stage", *shown, "total")]
    rows += [
        (str(s.stage), *(size(getattr(s, purpose)) for purpose in shown), size(s.total))
        for s in plan.memory
    ]
    return columns(rows, indent=4, right=frozenset(range(len(rows[0]))))


def _price(planned: Planned, *, modelled: bool) -> list[str]:
    plan, catalogue = planned.plan, planned.catalogue
    kind = plan.instance_type
    word = "modelled: processes of this machine, no dollar is paid" if modelled else "real dollars"
    lines = [
        f"  {count(plan.instances, 'instance')} of {kind.name} ({kind.gpus} x {kind.gpu} "
        f"{kind.gpu_memory_gib:g} GiB) in {planned.pool.zone}, {planned.pool.market.value} "
        f"({word})",
        f"    on-demand {usd(plan.on_demand_usd_per_hour)}/h (catalogue of "
        f"{catalogue.on_demand_seen})",
    ]
    for zone, price in sorted(plan.spot_usd_per_hour.items(), key=lambda item: (item[1], item[0])):
        lines.append(
            f"    spot {usd(price)}/h in {zone}, {price / plan.on_demand_usd_per_hour:.0%} of "
            f"on-demand (modelled; seen {catalogue.spot_seen})"
        )
    return lines


def _time(planned: Planned) -> list[str]:
    plan = planned.plan
    if plan.expected is None:
        return []
    expected = plan.expected
    steps = planned.strategy.semantics.steps
    value = plan.samples_per_usd(planned.usd_per_hour)
    worth = "" if value is None else f", {rate(value)} samples per dollar"
    return [
        f"  a calm step takes {duration(expected.step_s)} ({expected.source}): "
        f"{rate(expected.samples_per_s)} samples/s{worth}",
        f"    bubble {expected.bubble:.0%}, redundant work {expected.redundant:.0%}; all steps "
        f"{duration(expected.step_s * steps)}, "
        f"{usd(planned.usd_per_hour * expected.step_s * steps / 3600)}",
    ]


def requests_text(request: Mapping[str, Any]) -> str:
    """The exact arguments of RunInstances."""
    return "RunInstances " + json.dumps(request, indent=2)


def plan_body(run: str, planned: Planned) -> dict[str, Any]:
    """The value of `bamboo launch --dry-run --json`."""
    plan = planned.plan
    return {
        "run": run,
        "grid": {"pipelines": plan.grid.pipelines, "stages": plan.grid.stages},
        "redundancy": plan.mode,
        "cut": list(plan.cut),
        "parameters": plan.parameters,
        "memory": [_bytes_body(stage) for stage in plan.memory],
        "instance_type": plan.instance_type.name,
        "zone": planned.pool.zone,
        "market": planned.pool.market.value,
        "instances": plan.instances,
        "on_demand_usd_per_hour": plan.on_demand_usd_per_hour,
        "spot_usd_per_hour": dict(plan.spot_usd_per_hour),
        "usd_per_hour": planned.usd_per_hour,
        "step_s": plan.expected.step_s if plan.expected else None,
        "samples_per_s": plan.expected.samples_per_s if plan.expected else None,
        "samples_per_s_source": plan.expected.source if plan.expected else None,
        "samples_per_usd": plan.samples_per_usd(planned.usd_per_hour),
        "semantic_hash": planned.strategy.semantics.hash(),
        "notes": list(plan.notes),
        "requests": [dict(planned.request)],
    }


def _bytes_body(stage: StageBytes) -> dict[str, int]:
    return {
        "stage": stage.stage,
        **{purpose: getattr(stage, purpose) for purpose in PURPOSES},
        "total": stage.total,
    }
