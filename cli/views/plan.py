"""The plan of a launch as text: data, grid, cut, shadows, memory, instances, price, what it
survives, and which parts of an account it uses."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from itertools import takewhile
from typing import Any

from bamboo.config.notice import notice_s
from bamboo.config.tree import JobConfig
from bamboo.planner.layers.memory import StageBytes
from bamboo.planner.plans.candidates import saving_words
from bamboo.planner.plans.plan import Plan
from bamboo.planner.risks.checkpoint_cost import AUTO_LEAST_S
from bamboo.planner.risks.zones import RESTART_S, USD_PER_GB, Spread, cheapest
from bamboo.quantities import count, duration, rate, size, usd
from bamboo.study.intervals import Kept
from bamboo.study.planning import Planned
from bamboo.study.strategies import SYNCED_KEY
from bamboo.topology.slots import Slot
from bamboo.topology.strategy import modes_of, stage_modes
from bamboo.value import MINIMUM_BILLED_S
from cli.echo import columns, paragraph
from cli.views.quota import quota_lines
from cli.views.strategy import synced_body, synced_lines

STATE = ("parameters", "gradients", "moments", "partials", "shipping")
"""Shown as one figure: what training the stage takes in any mode, with its gradient on the way to
its shadow."""
APART = ("activations", "stash", "replica", "ahead", "factors")
MUCH_SPREAD = 0.1
PURPOSES = (*STATE, *APART, "takeover")


def plan_text(run: str, planned: Planned) -> str:
    """The whole plan except the requests."""
    plan = planned.plan
    semantics = planned.strategy.semantics
    lines = [
        f"{run}: {count(semantics.steps, 'step')} of {count(semantics.batch, 'sample')}, "
        f"{count(plan.grid.pipelines, 'pipeline')} of {count(plan.grid.stages, 'stage')}, "
        f"redundancy {plan.mode}{taken_to_save(planned)}",
        *paragraph(
            f"{model_words(plan)}, {count(semantics.virtual_nodes, 'virtual node')}, "
            f"semantics {semantics.hash()}"
        ),
        *_data(planned),
        *paragraph(planned.redundancy_why),
        *paragraph(planned.saving_why),
        *(paragraph(f"losses: {plan.rate.words}") if on_spot(planned) else ()),
        *synced_lines(planned.synced),
        "  memory per node at most, without a loss; state: parameters, gradients, moments in fp32",
        *_stages(plan),
        *(line for words in _beside(plan) for line in paragraph(words)),
        *_price(planned),
        *_time(planned),
        *kept_lines(planned.kept()),
        *_spreads(plan),
        *paragraph(notice_words(planned)),
        *(line for note in (*plan.notes, *size_notes(planned)) for line in paragraph(note)),
    ]
    return "\n".join(lines)


def taken_to_save(planned: Planned) -> str:
    """`, recompute layer`; nothing where nothing saves memory."""
    return "".join(f", {words}" for words in saving_words(planned.workload.saving))


def on_spot(planned: Planned) -> bool:
    """Whether the cloud can take its nodes."""
    return planned.pool.market == "spot"


def _stages(plan: Plan) -> list[str]:
    """A row for each stage: its layers, which stage's node shadows it and, where stages differ, in
    which mode; and the memory that its own node needs."""
    apart = [purpose for purpose in APART if any(getattr(s, purpose) for s in plan.memory)]
    # The first line has the mode where all stages have the same.
    modes = modes_of(plan.mode) if len(modes_of(plan.mode)) > 1 else ()
    own = ("redundancy",) if modes else ()
    rows: list[tuple[str, ...]] = [
        ("stage", "layers", "shadowed by", *own, "state", *apart, "total")
    ]
    for bytes_ in plan.memory:
        first, stop = plan.cut[bytes_.stage], plan.cut[bytes_.stage + 1]
        shadow = plan.assignment.shadow(Slot(pipeline=0, stage=bytes_.stage))
        shadowing = plan.assignment.owned_by(shadow)[0] if shadow is not None else None
        rows.append(
            (
                str(bytes_.stage),
                layers_text(range(first, stop)),
                "nobody" if shadowing is None else f"node of {shadowing.stage}",
                *modes[bytes_.stage : bytes_.stage + 1],
                size(sum(getattr(bytes_, purpose) for purpose in STATE)),
                *(size(getattr(bytes_, purpose)) for purpose in apart),
                size(bytes_.calm),
            )
        )
    return columns(rows, indent=4, right=frozenset({0, *range(3 + len(own), len(rows[0]))}))


def _beside(plan: Plan) -> list[str]:
    """What the table leaves out: a node that has lost its neighbour, and the host's memory."""
    kind, words = plan.instance_type, []
    most = max(plan.memory, key=lambda one: one.total)
    if any(one.takeover for one in plan.memory):
        lost = (most.stage + 1) % plan.grid.stages
        words.append(
            f"after a loss, the neighbour of stage {lost} holds {size(most.total, digits=2)} of "
            f"{kind.gpu_memory_text}, because it computes both stages until another node has one"
        )
    if host := max(one.host for one in plan.memory):
        words.append(
            f"in the host's memory: at most {size(host, digits=2)} of "
            f"{size(kind.host_room_bytes, digits=2)} for messages and moments"
        )
    return words


def layers_text(layers: range) -> str:
    """`3`, `0 to 4`."""
    return str(layers[0]) if len(layers) == 1 else f"{layers[0]} to {layers[-1]}"


def notice_words(planned: Planned) -> str:
    """What a notice suffices for: `a notice of 120 s keeps all: 5.0 MiB a stage at 0.6 GB/s`."""
    stage = size(planned.largest_stage_bytes())
    what = f"{stage} a stage at {planned.policy.store_bytes_per_s / 1e9:.2g} GB/s"
    notice = f"a notice of {notice_s(planned.job):g} s"
    if planned.fits_notice():
        return f"{notice} keeps all: {what}"
    return f"{notice} does not fit {what}: what no node keeps is lost"


def size_notes(planned: Planned) -> tuple[str, ...]:
    """Which sizes an autoscaled run may have, why its times are modelled although no option asked
    for it, and which grids do not fit into memory."""
    kind, notes = planned.plan.instance_type, []
    has = f"one {kind.gpu}, which has {kind.gpu_memory_text}"
    if planned.job.autoscale.enabled:
        sizes = ", ".join(map(str, planned.sizes()))
        notes.append(f"autoscale chooses among {sizes} nodes: each of these sizes fits {has}.")
    if planned.job.budget.free_first_hour:
        notes.append(
            "budget.free_first_hour is not counted here: a plan pays every second, and the bill of "
            "a run that loses nodes in their first hour is lower than it says."
        )
    if planned.modelled is not None and planned.modelled.why:
        notes.append(planned.modelled.why)
    if times := planned.gpu_times():
        notes.append(times)
    if planned.too_large:
        grids = ", ".join(
            f"{grid.pipelines} x {grid.stages} ({size(need)})" for grid, need in planned.too_large
        )
        notes.append(f"The run never grows to {grids}: a node would need more than fits {has}.")
    return tuple(notes)


def _price(planned: Planned) -> list[str]:
    plan, catalogue = planned.plan, planned.catalogue
    kind = plan.instance_type
    where = " and ".join(planned.zones or [planned.pool.zone])
    anchors = planned.job.cloud.anchors
    anchored = f", {count(anchors, 'anchor')} of them on demand" if anchors else ""
    local = planned.job.cloud.provider == "local"
    word = "modelled, nothing is paid" if local else "real dollars"
    spot = [
        f"{usd(price)}/h in {zone} ({price / plan.on_demand_usd_per_hour:.0%})"
        for zone, price in sorted(plan.spot_usd_per_hour.items(), key=lambda i: (i[1], i[0]))
    ]
    prices = f"on-demand {usd(plan.on_demand_usd_per_hour)}/h"
    if spot:
        prices += "; spot " + ", ".join(spot)
    return [
        *paragraph(
            f"{count(plan.instances, 'instance')} of {kind.name} ({kind.gpus} x {kind.gpu} "
            f"{kind.gpu_memory_gib:.3g} GiB), {planned.pool.market.value} in {where}{anchored}: "
            f"{word}"
        ),
        *paragraph(prices, indent=4),
        *paragraph(catalogue.sources([kind.name], spot=bool(spot)), indent=4),
        *(line for said in planned.price_warnings() for line in paragraph(said, indent=4)),
    ]


def _time(planned: Planned) -> list[str]:
    plan = planned.plan
    if plan.full is None:
        return []
    expected = plan.full
    steps = planned.strategy.semantics.steps
    value = plan.samples_per_usd(planned.usd_per_hour)
    worth = ""
    if value is not None:
        each = planned.job.tokens_per_sample
        tokens = f" or {rate(value * each)} tokens" if each else ""
        worth = f", {rate(value)} samples{tokens} per dollar"
    whole = plan.samples_per_usd(planned.whole_usd_per_hour)
    if worth and whole and whole != value:
        worth += f" of instances, {rate(whole)} samples with the bytes between zones"
    moved_usd = plan.transfer_usd_per_hour * expected.step_s * steps / 3600
    moved = f" and {usd(moved_usd)} for bytes between zones" if moved_usd else ""
    grown = plan.largest.pipelines
    of = f" of all {count(grown, 'pipeline')}" if plan.largest != plan.grid else ""
    return [
        *paragraph(
            f"a calm step{of} takes {duration(expected.step_s)}: {rate(expected.samples_per_s)} "
            f"samples/s{worth}"
        ),
        *paragraph(expected.source, indent=4),
        *(paragraph(words, indent=4) if (words := unlike_words(planned)) else ()),
        *paragraph(
            f"bubble {expected.bubble:.0%}, redundant work {expected.redundant:.0%}; all steps "
            f"{_in_all(expected.step_s * steps, planned.usd_per_hour)}{moved}",
            indent=4,
        ),
    ]


def unlike_words(planned: Planned) -> str:
    """How much the times of microbatches differ, where that matters."""
    if planned.microbatch_spread < MUCH_SPREAD:
        return ""
    return (
        f"this is by the mean of unlike microbatches, whose times differ by "
        f"{planned.microbatch_spread:.0%} of it; memory is by the largest"
    )


def _in_all(seconds: float, usd_per_hour: float) -> str:
    """Time and dollars of calm steps, with the billed minimum where they cost less."""
    words = f"{duration(seconds)}, {usd(usd_per_hour * seconds / 3600)}"
    if seconds < MINIMUM_BILLED_S:
        least = usd(usd_per_hour * MINIMUM_BILLED_S / 3600)
        words += f"; at least {least} is billed: {MINIMUM_BILLED_S} s an instance"
    return words


def _spreads(plan: Plan) -> list[str]:
    """A row for each spread over the zones, its price per hour, and why one of them is taken."""
    if len(plan.spreads) < 2:
        return []
    zones = sorted({zone for one in plan.spreads for zone in one.zones})
    alike = takewhile(lambda messages: len(set(messages)) == 1, zip(*zones, strict=False))
    region = "".join(messages[0] for messages in alike)
    head = ("spread", "nodes", "instances", "transfer", "fatal losses", "their price", "total")
    rows = [head]
    for one in plan.spreads:
        rows.append(
            (
                f"{one.name}, taken" if one is plan.chosen else one.name,
                ", ".join(f"{n} in {zone[len(region) :]}" for zone, n in one.zones.items()),
                usd(one.instances_usd_per_hour),
                usd(one.transfer_usd_per_hour),
                f"{one.fatal_per_hour:.2f} an hour",
                usd(one.fatal_usd_per_hour),
                usd(one.total_usd_per_hour),
            )
        )
    return [
        f"  expected price per hour of each spread over the zones of {region}:",
        *columns(rows, indent=4, right=frozenset(range(2, len(head)))),
        *paragraph(spread_sentence(plan), indent=4),
    ]


def spread_sentence(plan: Plan) -> str:
    """Why this spread, and what its price was made from."""
    best, taken = cheapest(plan.spreads), plan.chosen
    assert taken is not None, "a plan takes one of the spreads that it prices"
    others = [one for one in plan.spreads if one is not taken]
    next_best = cheapest(others) if others else taken
    if taken is best:
        why = (
            f"{taken.name} is taken: {usd(taken.total_usd_per_hour)}/h in all against "
            f"{usd(next_best.total_usd_per_hour)}/h for {next_best.name}"
        )
    else:
        why = (
            f"{taken.name} is taken, as the job says, at {usd(taken.total_usd_per_hour)}/h in all; "
            f"{best.name} would come to {usd(best.total_usd_per_hour)}/h"
        )
    return (
        f"{why}. Modelled: ${USD_PER_GB} per GB between zones; {plan.rate.per_node_hour:.3g} "
        "losses per node-hour on spot, 1 to 6 nodes of one zone at an instant, as in Bamboo's p3 "
        "trace; fatal is what no live copy survives, and costs the work since the last "
        f"checkpoint, or half the run, and {RESTART_S:g} s until all go on."
    )


def instances_by_market(planned: Planned) -> tuple[tuple[bool, int], ...]:
    """(Whether on spot, how many instances)."""
    job, every = planned.job, planned.plan.instances
    on_demand = every if job.cloud.market != "spot" else job.cloud.anchors
    return ((True, every - on_demand), (False, on_demand))


def quota_text(planned: Planned) -> str:
    """What the instances need of the account's quotas, spot and on demand apart."""
    job, name = planned.job, planned.pool.instance_type
    return "\n".join(
        line
        for spot, nodes in instances_by_market(planned)
        for line in quota_lines(
            planned.catalogue, {name: nodes}, spot=spot, region=job.cloud.region
        )
    )


def model_words(plan: Plan) -> str:
    """How many parameters are trained in how many layers, and what there is beside them."""
    layers = count(plan.cut[-1], "layer")
    if not plan.frozen_bytes:
        return f"{plan.parameters:,} parameters in {layers}"
    return (
        f"{plan.parameters:,} trained parameters in {layers}, "
        f"{size(plan.frozen_bytes)} frozen or buffers"
    )


def requests_text(request: Mapping[str, Any]) -> str:
    """A call with its exact arguments; for user data the digest and the size."""
    return f"{request['call']} {json.dumps(request['arguments'], indent=2)}"


def plan_body(run: str, planned: Planned) -> dict[str, Any]:
    """The value of `bamboo launch --dry-run --json`."""
    plan = planned.plan
    return {
        "run": run,
        "grid": {"pipelines": plan.grid.pipelines, "stages": plan.grid.stages},
        "redundancy": plan.mode,
        "redundancy_of_stages": list(stage_modes(plan.mode, plan.grid.stages)),
        "redundancy_reason": planned.redundancy_why or None,
        "recompute": planned.job.cluster.recompute,
        "replica_moments": planned.job.cluster.replica_moments,
        "saving_reason": planned.saving_why or None,
        "cut": list(plan.cut),
        SYNCED_KEY: synced_body(planned.synced),
        "parameters": plan.parameters,
        "frozen_bytes": plan.frozen_bytes,
        "memory": [bytes_body(stage) for stage in plan.memory],
        "instance_type": plan.instance_type.name,
        "zone": planned.pool.zone,
        "market": planned.pool.market.value,
        "instances": plan.instances,
        "on_demand_usd_per_hour": plan.on_demand_usd_per_hour,
        "spot_usd_per_hour": dict(plan.spot_usd_per_hour),
        "price_warnings": list(planned.price_warnings()),
        **planned.promised(),
        "modelled_gpu": planned.modelled.gpu if planned.modelled is not None else None,
        "tokens_per_sample": planned.job.tokens_per_sample,
        "unit": planned.job.counted,
        "microbatch_spread": planned.microbatch_spread,
        "semantic_hash": planned.strategy.semantics.hash(),
        "data": dict(planned.data),
        "notes": [*plan.notes, *size_notes(planned)],
        "autoscale": {"sizes": list(planned.sizes())} if planned.job.autoscale.enabled else None,
        "losses": plan.rate.body() if on_spot(planned) else None,
        "spread": plan.spread,
        "spreads": [_spread_body(spread) for spread in plan.spreads],
        "spread_reason": spread_sentence(plan) if plan.spreads else None,
        "checkpoints": kept.body() if (kept := planned.kept()) is not None else None,
        "requests": [dict(request) for request in planned.requests],
    }


def bytes_body(stage: StageBytes) -> dict[str, int]:
    """The bytes of each purpose, and their sum; and beside them what lies in the host's memory."""
    return {
        "stage": stage.stage,
        **{purpose: getattr(stage, purpose) for purpose in PURPOSES},
        "total": stage.total,
        "host": stage.host,
    }


def _spread_body(spread: Spread) -> dict[str, Any]:
    return {
        "name": spread.name,
        "zones": dict(spread.zones),
        "instances_usd_per_hour": spread.instances_usd_per_hour,
        "crossing_bytes_per_step": spread.crossing_bytes,
        "transfer_usd_per_hour": spread.transfer_usd_per_hour,
        "fatal_losses_per_hour": spread.fatal_per_hour,
        "fatal_usd_per_hour": spread.fatal_usd_per_hour,
        "usd_per_hour": spread.total_usd_per_hour,
    }


def kept_lines(kept: Kept | None) -> list[str]:
    """As a paragraph; none where the time of a step is unknown."""
    return [] if kept is None else paragraph(kept_sentence(kept))


def kept_sentence(kept: Kept) -> str:
    """Interval, reason, and cost in time, bytes and dollars."""
    if not kept.every_steps and not kept.planned:
        return "no periodic checkpoint, as the job says"
    if not kept.every_steps:
        return (
            f"no periodic checkpoint: all steps take {duration(kept.run_s)}, and a run of "
            f"{duration(AUTO_LEAST_S)} or less has none unless its job says so"
        )
    why = "as the job says"
    if kept.planned:
        why = (
            "by the formula of Young and Daly over "
            f"{kept.fatal_per_hour:.2g} fatal losses an hour, modelled, and once an hour at least"
        )
    price = f" at {usd(kept.usd_per_hour)}/h with the requests" if kept.bucket else ""
    return (
        f"a checkpoint every {count(kept.every_steps, 'step')} ({duration(kept.every_s)}), {why}: "
        f"{100 * kept.share:.2g} % of the time, {size(round(kept.stored_bytes))} kept{price}"
    )


ACCOUNT_KEYS = (
    *("launch_template", "subnets", "security_group", "instance_profile", "bucket"),
    "store_secret",
)

_IN_TEMPLATE = "(in the launch template)"
_UNNAMED = {"security_group": _IN_TEMPLATE, "instance_profile": _IN_TEMPLATE}


def account_lines(job: JobConfig) -> list[str]:
    """A line for each part of the account that the job uses; none of a local job."""
    if job.cloud.provider == "local":
        return []
    parts = account_body(job)["account"]
    if not any(parts.values()):
        return [f"account in {job.cloud.region}: no part is named; `bamboo init` writes them"]
    lines = [f"account in {job.cloud.region}:"]
    for name, value in parts.items():
        listed = (
            ", ".join(f"{s['id']} ({s['zone']})" for s in value) if name == "subnets" else value
        )
        lines.append(f"  {name:17}{listed or _UNNAMED.get(name, '(none named)')}")
    return lines


def account_body(job: JobConfig) -> dict[str, Any]:
    """The same for `--json`; null for a local job."""
    if job.cloud.provider == "local":
        return {"account": None}
    cloud = asdict(job.cloud)
    return {"account": {name: cloud[name] for name in ACCOUNT_KEYS}}


def _data(planned: Planned) -> list[str]:
    return data_lines(planned.data) if planned.data else [f"data: {own_data(planned)}"]


def data_lines(body: Mapping[str, Any]) -> list[str]:
    """From a body as `bamboo.data.described.Description` makes it, or `bamboo.data.tokens`."""
    if "tokens" in body:
        return paragraph(f"data: {token_words(body)}")
    not_text = body["not_text"]
    kind = "UTF-8 text" if not not_text["files"] else "bytes"
    words = f"data: {count(body['files'], 'file')}, {size(body['bytes'])} of {kind}"
    if body["left_out"]:
        words += "; left out: " + ", ".join(_several(*one) for one in body["left_out"].items())
    if not_text["files"]:
        words += f"; not text: {_named(not_text)}"
    for syntax, files in body["syntax"].items():
        words += f"; read with its syntax: {syntax} in {_named(files)}"
    if body["bytes"] < body["all_bytes"]:
        words += (
            f"; cut at data.max_bytes = {size(body['max_bytes'])} of {size(body['all_bytes'])} in "
            f"{count(body['all_files'], 'file')}"
        )
    lines = paragraph(words)
    if not_text["files"]:
        lines += paragraph(
            f"warning: the model learns the bytes of {_named(not_text)} too; move what is no text "
            "out of data.path, unless you mean it"
        )
    return lines


def token_words(body: Mapping[str, Any]) -> str:
    """`1,204,331 tokens in text.u2, below 8,000; 120 documents, padded, 3 of them cut`."""
    words = f"{count(body['tokens'], 'token')} in {ascii(body['file'])[1:-1]}, "
    words += f"{size(body['bytes'])}, below {body['vocabulary']:,}"
    if body["documents"]:
        words += f"; {count(body['documents'], 'document')}"
        words += ", padded" if body["padded"] else ", packed"
    if body.get("cut"):
        words += f", {body['cut']:,} of them cut at model.context"
    return words


def own_data(planned: Planned) -> str:
    """`1,797 samples of the model's own, counted in images`."""
    counted = f", counted in {planned.job.unit}s" if planned.job.unit != "sample" else ""
    return f"{count(planned.samples, 'sample')} of the model's own{counted}"


def _several(what: str, number: int) -> str:
    """`2 hidden`, `1 link to a folder`."""
    return f"{number:,} {what}" if number == 1 or what == "hidden" else f"{number:,} x {what}"


def _named(files: Mapping[str, Any]) -> str:
    """`1 (logo.png)`, `5 (a.png, b.png, c.png, ...)`. A name is made printable."""
    names = ", ".join(ascii(name)[1:-1] for name in files["named"])
    more = ", ..." if files["files"] > len(files["named"]) else ""
    return f"{files['files']:,} ({names}{more})"
