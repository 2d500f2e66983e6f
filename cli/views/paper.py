"""`bamboo plan` as text and as JSON: the plan of a launch, its nodes, its value, the next plans."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bamboo.planner.plans.candidates import saving_words
from bamboo.planner.plans.nodes import NodeShare, tightest
from bamboo.planner.plans.ranking import Candidate
from bamboo.planner.plans.resized import worth_a_word
from bamboo.quantities import duration, rate, size, usd
from bamboo.study.paper import Shown
from bamboo.study.strategies import KEY
from bamboo.topology.strategy import modes_of
from cli.echo import columns, paragraph
from cli.views.plan import bytes_body, layers_text, plan_body, plan_text
from cli.views.quota import quota_body, quota_lines

NODES = ("stage", "nodes", "layers", "replica of", "holds", "useful", "redundant", "bubble")
KEY_OF_SIZE = "train.microbatch"
NEXT = ("plan", "spread", "nodes", "step", "samples/s", "$/h", "overhead", "samples per $")


def paper_text(shown: Shown) -> str:
    """The plan as `launch` shows it; below it what each node does, and why this plan was chosen."""
    head = plan_text(shown.name, shown.planned)
    lines = [
        "  a node of each stage: what it holds at most, and how it spends a calm step:",
        *_nodes(shown.nodes),
        *_tightest(shown),
        *_expected(shown),
        *_compared(shown),
        *_sizes(shown),
        *(line for note in shown.notes for line in paragraph(note)),
    ]
    return "\n".join([*quota_lines(**_needed(shown)), head, *lines])


def _needed(shown: Shown) -> dict[str, Any]:
    """The instances that the account's quotas must allow."""
    planned = shown.planned
    return {
        "catalogue": planned.catalogue,
        "instances": {planned.plan.instance_type.name: planned.plan.instances},
        "spot": planned.pool.market == "spot",
        "region": planned.job.cloud.region,
    }


def _nodes(nodes: Sequence[NodeShare]) -> list[str]:
    """A row for each stage; over its pipelines, whose shares may differ, the least and the most."""
    rows: list[tuple[str, ...]] = [NODES]
    for stage in sorted({node.slot.stage for node in nodes}):
        column = [node for node in nodes if node.slot.stage == stage]
        figures = [node.figures for node in column]
        rows.append(
            (
                str(stage),
                str(len(column)),
                layers_text(column[0].layers),
                ", ".join(f"stage {s}" for s in sorted({r.stage for r in column[0].replicas}))
                or "none",
                size(column[0].bytes.total),
                _between([one.useful_s for one in figures]),
                _between([one.redundant_s for one in figures]),
                _between([one.idle_s for one in figures]),
            )
        )
    return columns(rows, indent=4, right=frozenset({0, 1, *range(4, len(NODES))}))


def _tightest(shown: Shown) -> list[str]:
    """Where all stages have one redundancy mode, the stage with the least to spare decides it."""
    memory, time = tightest(shown.nodes)
    room = shown.planned.plan.instance_type.gpu_memory_bytes
    share = time.figures.idle_s / _step_s(time)
    alike = len(modes_of(shown.planned.plan.mode)) == 1
    words = "redundancy is the same for all stages" if alike else "each stage has its redundancy"
    verb = "decides" if alike else "has the least to spare"
    return paragraph(
        f"{words}: in memory stage {memory.slot.stage} {verb}, with "
        f"{size(memory.bytes.total)} of {size(room)}, and in time stage {time.slot.stage}, of "
        f"whose step {_percent(share)} is a bubble"
    )


def _step_s(node: NodeShare) -> float:
    return node.figures.useful_s + node.figures.redundant_s + node.figures.idle_s


def _between(seconds: Sequence[float]) -> str:
    least, most = duration(min(seconds)), duration(max(seconds))
    return least if least == most else f"{least} to {most}"


def _expected(shown: Shown) -> list[str]:
    one, losses = shown.taken, shown.taken.losses
    lost = "nothing is lost on demand"
    if shown.hazard.stakes.preemptible:
        hazard = shown.hazard.rate.per_node_hour
        lost = (
            f"losses cost {_percent(losses.share)} of the useful time, modelled with {hazard:.3g} "
            f"per node-hour: {losses.survived_per_hour:.3g} an hour are survived, "
            f"{losses.fatal_per_hour:.3g} are not"
        )
    return [
        *paragraph(
            f"expected overhead {_percent(one.overhead)}: redundancy makes a calm step "
            f"{_percent(one.redundancy_overhead)} longer, and {lost}"
        ),
        *paragraph(
            f"expected value {rate(one.value)} samples per dollar: "
            f"{rate(one.expected_samples_per_s)} samples/s with losses, at "
            f"{usd(one.usd_per_hour)}/h with what moves between zones"
        ),
    ]


def _compared(shown: Shown) -> list[str]:
    if not shown.others:
        return ["  there is no other plan of so many nodes that fits"]
    rows = [NEXT, _row(shown.taken)]
    rows += [_row(one) for one, _ in shown.others]
    lines = ["  this plan and the next, in the job's own microbatches, by expected value:"]
    lines += columns(rows, indent=4, right=frozenset(range(2, len(NEXT))))
    for one, why in shown.others:
        lines += paragraph(f"{_name(one)}: {why}", indent=4)
    return lines


def _sizes(shown: Shown) -> list[str]:
    """Whether another microbatch would be faster. The user would have to set it."""
    own, better = shown.taken.choice, worth_a_word(shown.resized)
    if better is None:
        return paragraph(
            f"microbatches of {own.microbatch}: no other size of the same batch that fits is "
            "expected to be faster"
        )
    bytes_words = f"{size(abs(better.less_bytes))} {'less' if better.less_bytes >= 0 else 'more'}"
    return paragraph(
        f"microbatches of {better.microbatch} instead of {own.microbatch}: "
        f"{_percent(better.faster)} faster, {size(better.most_bytes)} on the fullest node, "
        f"{bytes_words}, modelled in proportion; it changes the numbers, so set it before the "
        f"first launch: --set {KEY_OF_SIZE}={better.microbatch}"
    )


def _name(one: Candidate) -> str:
    grid = one.choice.grid
    short = [words.partition(" ")[0] for words in saving_words(one.choice.saving)]
    return ", ".join((f"{grid.pipelines} x {grid.stages} {one.choice.mode}", *short))


def _row(one: Candidate) -> tuple[str, ...]:
    return (
        _name(one),
        one.spread,
        str(one.nodes),
        duration(one.step_s),
        rate(one.samples_per_s),
        usd(one.usd_per_hour),
        _percent(one.overhead),
        rate(one.value),
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def paper_body(shown: Shown) -> dict[str, Any]:
    """The value of `bamboo plan --json`; `strategy` is what `--strategy` takes."""
    planned = shown.planned
    body = plan_body(shown.name, planned)
    del body["run"], body["requests"]
    return {
        "schema_version": 1,
        "job": shown.name,
        **body,
        "nodes": [_node_body(node) for node in shown.nodes],
        "tightest": {
            what: node.slot.stage
            for what, node in zip(("memory", "time"), tightest(shown.nodes), strict=True)
        },
        "quota": quota_body(**_needed(shown)),
        "losses_per_node_hour": shown.hazard.rate.per_node_hour,
        "expected": _candidate_body(shown.taken),
        "next": [{**_candidate_body(one), "why": why} for one, why in shown.others],
        "microbatches": [
            {**asdict(one), "set": f"{KEY_OF_SIZE}={one.microbatch}"} for one in shown.resized
        ],
        "notes": [*body["notes"], *shown.notes],
        KEY: json.loads(planned.strategy.to_json()),
    }


def _node_body(node: NodeShare) -> dict[str, Any]:
    return {
        "pipeline": node.slot.pipeline,
        "stage": node.slot.stage,
        "zone": node.zone or None,
        "layers": list(node.layers),
        "replicas": [{"pipeline": r.pipeline, "stage": r.stage} for r in node.replicas],
        "bytes": bytes_body(node.bytes),
        "useful_s": node.figures.useful_s,
        "redundant_s": node.figures.redundant_s,
        "bubble_s": node.figures.idle_s,
    }


def _candidate_body(one: Candidate) -> dict[str, Any]:
    """All of it is modelled from the times whose source the plan names."""
    grid = one.choice.grid
    return {
        "grid": {"pipelines": grid.pipelines, "stages": grid.stages},
        "redundancy": one.choice.mode,
        "microbatch": one.choice.microbatch,
        "recompute": one.choice.saving.recompute,
        "host_moments": one.choice.saving.host_moments,
        "cut": list(one.choice.cut),
        "spread": one.spread,
        "nodes": one.nodes,
        "most_bytes": one.choice.most_bytes,
        "step_s": one.step_s,
        "samples_per_s": one.samples_per_s,
        "expected_samples_per_s": one.expected_samples_per_s,
        "usd_per_hour": one.usd_per_hour,
        "samples_per_usd": one.value,
        "overhead": one.overhead,
        "redundancy_overhead": one.redundancy_overhead,
        "losses_share": one.losses.share,
        "survived_per_hour": one.losses.survived_per_hour,
        "fatal_per_hour": one.losses.fatal_per_hour,
    }
