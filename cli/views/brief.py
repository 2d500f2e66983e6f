"""The plan and the end of a launch in few lines of 80 columns; `--verbose` prints all of both.

Rule: everything that a person would act on is kept: a warning, what is not survived, what went
wrong.
"""

import textwrap
from collections.abc import Mapping
from math import comb
from typing import Any

from bamboo.checkpoint.initial import Weights
from bamboo.planner.plans.candidates import saving_words
from bamboo.planner.prices.quota import quota_needed, quota_sentence
from bamboo.planner.risks.survival import Outcome, broken, copies_of_stages, single_loss
from bamboo.quantities import count, duration, rate, size, usd
from bamboo.study.planning import Planned
from bamboo.study.played_trace import HOUR_S, Replayed
from bamboo.topology.strategy import modes_of
from bamboo.topology.sync import Sync
from bamboo.value import MINIMUM_BILLED_S
from cli.views.metrics import evaluation_words, metric_words
from cli.views.plan import instances_by_market, model_words, notice_words, own_data

WIDTH = 80
PLAN_LINES = 12
END_LINES = 15


# ---------------------------------------------------------------- the plan


def plan_lines(
    run: str,
    planned: Planned,
    *,
    played: Replayed | None = None,
    weights: Weights | None = None,
    logs_to: Mapping[str, str] | None = None,
    upload_bytes: int | None = None,
) -> list[str]:
    """At most PLAN_LINES lines of at most WIDTH columns. `played`: the trace that the run's nodes
    follow; `weights`: those of another run, which this one begins with; `logs_to`: tracker ->
    where; `upload_bytes`: how much of the data goes to a bucket, None where none is read there."""
    local = planned.job.cloud.provider == "local"
    semantics = planned.strategy.semantics
    given = "" if weights is None else f"; weights of {weights.run}@{weights.step}"
    rows = [
        ("model", _model(planned)),
        ("data", f"{_data(planned)}{_uploaded(upload_bytes)}{given}"),
        ("grid", _grid(planned)),
        *_saving(planned),
        *_gradients(planned),
        ("instances", _instances(planned)),
        ("price", _price(planned, modelled=local)),
        *_times(planned),
        *_doubt(planned),
        ("survives", _survives(planned)),
    ]
    if played is not None:
        rows.append(("trace", _trace(played)))
    rows += [("logs to", f"{name}: {place}") for name, place in (logs_to or {}).items()]
    warnings = [*_too_large(planned), *planned.price_warnings()]
    warnings += [] if local else _short_quotas(planned)
    notice = notice_words(planned)
    if not planned.fits_notice():
        warnings.insert(0, notice)
    room, notes = PLAN_LINES - len(rows) - 2, list[str]()
    while warnings and len(folded := _folded("note", warnings[0], most=3)) + len(notes) <= room:
        notes += folded
        del warnings[0]
    if len(notes) < room and (planned.fits_notice() or notice in warnings):
        rows.append(("notices", notice))
        warnings = [words for words in warnings if words != notice]
    left = f"; {count(len(warnings), 'more note')}" if warnings else ""
    return [
        fit(f"{run}: {count(semantics.steps, 'step')} of {count(semantics.batch, 'sample')}"),
        *(fit(_row(name, words)) for name, words in rows),
        *notes,
        _row("all of it", f"with --verbose{left}"),
    ]


def _grid(planned: Planned) -> str:
    grid, modes = planned.plan.grid, modes_of(planned.plan.mode)
    shape = f"{count(grid.pipelines, 'pipeline')} of {count(grid.stages, 'stage')}"
    most = size(max(stage.total for stage in planned.plan.memory))
    mode = modes[0] if len(modes) == 1 else "by stage"
    return f"{shape}, redundancy {mode}; up to {most} a node"


def _saving(planned: Planned) -> list[tuple[str, str]]:
    """What saves memory, and why."""
    taken = saving_words(planned.workload.saving)
    by_plan, _, why = planned.saving_why.partition(": ")
    if not any(words.replace(" ", " auto is ") in by_plan for words in taken):
        why = "as the job says"
    return [("memory", f"{' and '.join(taken)}: {why}")] if taken else []


def _gradients(planned: Planned) -> list[tuple[str, str]]:
    """How they are synchronised, where that is not all by `tree` in one piece."""
    synced = planned.synced
    totals = synced.totals()
    if synced.sync == Sync() or totals is None:
        return []
    sent, whole = totals.exchange_bytes + totals.ship_bytes, totals.tree_bytes
    bytes_ = f"{size(sent)} a step of all nodes in place of {size(whole)}"
    if sent == whole:
        bounds = (synced.sync.bucket, *(rule.bucket for rule in synced.sync.rules))
        early = any(bound is not None for bound in bounds)
        bytes_ = "as many bytes as by tree" + ", those of the last layers first" * early
    return [("gradients", f"by {synced.builder}, {bytes_}")]


def _instances(planned: Planned) -> str:
    plan, kind = planned.plan, planned.plan.instance_type
    zones = planned.zones or {planned.pool.zone: plan.instances}
    where = next(iter(zones)) if len(zones) == 1 else count(len(zones), "zone")
    spare = plan.instances - plan.largest.size
    standbys = f", {count(spare, 'standby')}" if spare else ""
    market = planned.pool.market.value
    return f"{plan.instances} x {kind.name} ({kind.gpu}), {market} in {where}{standbys}"


def _price(planned: Planned, *, modelled: bool) -> str:
    word = "modelled, nothing is paid" if modelled else "real dollars"
    moved = planned.plan.transfer_usd_per_hour
    on_demand = f"; on demand {usd(planned.plan.on_demand_usd_per_hour)}/h"
    if moved or planned.usd_per_hour == planned.plan.on_demand_usd_per_hour:
        on_demand = ""
    more = f" + {usd(moved)}/h for bytes" if moved else ""
    return f"{usd(planned.usd_per_hour)}/h{more}, {word}{on_demand}"


def _times(planned: Planned) -> list[tuple[str, str]]:
    full = planned.plan.full
    if full is None:
        return []
    value = planned.plan.samples_per_usd(planned.whole_usd_per_hour)
    worth = "" if value is None else f", {rate(value)} samples per dollar"
    if worth and planned.plan.transfer_usd_per_hour:
        worth += " with bytes"
    semantics = planned.strategy.semantics
    seconds = full.step_s * semantics.steps
    billed_s = max(seconds, float(MINIMUM_BILLED_S))
    paid = planned.usd_per_hour * billed_s + planned.plan.transfer_usd_per_hour * seconds
    run = f"{duration(seconds)}, {usd(paid / 3600)}, without start and losses"
    if billed_s > seconds:
        # The rates of a step and the receipt's differ by this most of all.
        per_usd = rate(semantics.steps * semantics.batch * 3600 / paid)
        run = f"{duration(seconds)} calm, {usd(paid / 3600)} as {MINIMUM_BILLED_S} s are billed"
        run += f": {per_usd} per dollar"
    return [
        ("a step", f"{duration(full.step_s)}: {rate(full.samples_per_s)} samples/s{worth}"),
        ("the run", run),
    ]


def _doubt(planned: Planned) -> list[tuple[str, str]]:
    """Whether the times are of a card on which nothing was measured."""
    doubt = planned.gpu_doubt()
    return [("times", doubt)] if doubt else []


def _survives(planned: Planned) -> str:
    plan = planned.plan
    every = min(planned.job.checkpoint.interval, planned.job.train.steps)
    single = single_loss(plan.assignment, plan.mode, checkpoint_every=every)
    if single is Outcome.ENDED:
        which = "the loss of its node" if plan.largest.size == 1 else "any node that goes"
        return f"no loss: {which} without a notice ends the run"
    if single is Outcome.RESTORED:
        return f"any loss by going back to a checkpoint, at most {count(every, 'step')}"
    how = "in the step" if single is Outcome.INSIDE else "from another pipeline"
    nodes = len(plan.assignment.members())
    _, fatal = broken(copies_of_stages(plan.assignment, plan.mode), nodes)
    if not fatal:
        return f"any one loss, {how}, and any two at once"
    if nodes == 2:
        return f"any one loss, {how}; both {'need a checkpoint' if every else 'end the run'}"
    one = fatal == 1
    becomes = f"need{'s' * one} a checkpoint" if every else f"end{'s' * one} the run"
    return f"any one loss, {how}; {fatal} of {comb(nodes, 2)} pairs at once {becomes}"


def _trace(played: Replayed) -> str:
    terms = played.terms
    hours = (played.end_s - terms.begin_s) / HOUR_S
    lost = count(played.preemptions, "preemption")
    nodes = f"{played.nodes_at_begin} nodes at first, at most {terms.max_nodes}"
    return f"as in {terms.name}, modelled: {nodes}, {lost} in {hours:.2f} h"


def _short_quotas(planned: Planned) -> list[str]:
    """The quotas that the account is not known to have; the whole plan lists all of them."""
    catalogue, name = planned.catalogue, planned.pool.instance_type
    return [
        quota_sentence(need, region=planned.job.cloud.region, today=catalogue.today)
        for spot, nodes in instances_by_market(planned)
        for need in quota_needed({name: nodes}, catalogue, spot=spot)
        if not need.enough
    ]


def _too_large(planned: Planned) -> list[str]:
    kind = planned.plan.instance_type
    stages = [s.stage for s in planned.plan.memory if s.total > kind.gpu_memory_bytes]
    names = ", ".join(map(str, stages))
    return [f"stage {names} does not fit one {kind.gpu}: take more stages"] if stages else []


# ---------------------------------------------------------------- the end


def end_lines(body: Mapping[str, Any]) -> list[str]:
    """The end of a run from its receipt, at most END_LINES lines of at most WIDTH columns."""
    run, done = body["run"], body["outcome"] == "done"
    parts = f" in {body['parts']} parts" if body.get("parts", 1) > 1 else ""
    lines = [
        f"{run}: {body['outcome']} after step {body['step']}/{body['steps']} "
        f"in {duration(body['wall_s'])}{parts}"
    ]
    if not done:
        lines += _folded("why", body["sentence"], most=6)
    if body["final_note"]:
        lines += _folded("note", body["final_note"], most=2)
    newest = body.get("newest_checkpoint")
    if newest is not None and not done:
        lines.append(_row("go on", f"bamboo resume {run}: from step {newest}"))
    after = [
        *_losses(body),
        *_bill(body["bill"]),
        *_value(body),
        *([_row("check it", f"bamboo verify {run}")] if done and not body["final_note"] else []),
        _row("all of it", f"bamboo report {run}"),
    ]
    troubles = [
        line
        for sentence in body.get("troubles", ())
        for line in _folded("trouble", sentence, most=4)
    ]
    head, named = _lost(body)
    room = END_LINES - len(lines) - len(after) - len(head)
    lines += troubles[: max(0, room)]
    room -= len(troubles)
    if len(named) > room:
        hidden = len(named) - max(0, room - 1)
        named = [*named[: max(0, room - 1)], f"  and {hidden} more"][: max(0, room)]
    return [fit(line) for line in [*lines, *head, *named, *after]]


def _row(label: str, words: str) -> str:
    return f"  {label:<10}  {words}"


def _folded(label: str, words: str, *, most: int) -> list[str]:
    """A row of at most `most` lines; an omission is marked."""
    return textwrap.wrap(
        words,
        WIDTH,
        initial_indent=_row(label, ""),
        subsequent_indent=" " * 14,
        max_lines=most,
        placeholder=" ...",
        break_on_hyphens=False,
    )


def _losses(body: Mapping[str, Any]) -> list[str]:
    first = body["first_loss"]
    last = body["last_loss"]
    mean = body["mean_loss_of_last_10"]
    if first is None or last is None or mean is None:
        return []
    steps = count(min(10, body["step"]), "step")
    lines = [_row("loss", f"{first:.4f} -> {last:.4f}; mean of the last {steps} {mean:.4f}")]
    if metrics := metric_words(body.get("last_metrics", {})):
        lines.append(_row("metrics", f"{', '.join(metrics)} in the last step"))
    if evaluated := evaluation_words(body["status"].get("evaluation")):
        lines.append(_row("evaluation", evaluated))
    return lines


def _lost(body: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """A row for all losses, and a line for each."""
    lost, reconfigured = body["preemptions"], body["reconfigurations"]
    again = sum(one["steps_again"] for one in reconfigured)
    noticed = sum(one.get("noticed", one.get("planned", False)) for one in lost)
    words = count(len(lost), "node") + " lost"
    words += f" in part {body['parts']}" if body.get("parts", 1) > 1 else ""
    words += f", {noticed} after a notice" if noticed else ""
    if reconfigured:
        words += f"; {count(len(reconfigured), 'reconfiguration')}"
    words += f"; {count(again, 'step')} done again" if again else "; no step done again"
    named = [f"  {one.get('short', one['line'])}" for one in lost]
    return _folded("losses", words, most=2), named


def _model(planned: Planned) -> str:
    """A job that names no model has the built-in one, which its author may not know."""
    words = model_words(planned.plan)
    is_plain = planned.job.model.is_gpt and not planned.plan.frozen_bytes
    return f"built-in GPT, {words}" if is_plain else words


def _data(planned: Planned) -> str:
    text = planned.data
    if not text:
        return own_data(planned)
    if "tokens" in text:
        return f"{count(text['tokens'], 'token')}, {size(text['bytes'])}"
    return f"{count(text['files'], 'file')}, {size(text['bytes'])}"


def _uploaded(upload_bytes: int | None) -> str:
    if upload_bytes is None:
        return ""
    return f"; {size(upload_bytes)} go to the bucket" if upload_bytes else "; in the bucket already"


def _bill(bill: Mapping[str, Any]) -> list[str]:
    if not bill["instances"]:
        return [_row("bill", "no instance was started, nothing is to be paid")]
    words = usd(bill["usd"]) + (" modelled" if bill["modelled"] else "")
    if "whole_usd" in bill:
        words += f", {usd(bill['whole_usd'])} with disks and bytes"
    if bill["on_demand_usd"]:
        words += f"; {bill['usd'] / bill['on_demand_usd']:.0%} of on demand"
    return [_row("bill", words)]


def _value(body: Mapping[str, Any]) -> list[str]:
    if not body["samples_per_usd"]:
        return []
    words = f"{rate(body['samples_per_s'])} samples/s, {rate(body['samples_per_usd'])} per dollar"
    words += ", start to end"
    rented = body["bill"]["instances"]
    minimum = any(one["seconds"] < one["billed_s"] == MINIMUM_BILLED_S for one in rented)
    whole = _row("value", f"{words}, {MINIMUM_BILLED_S} s at least" if minimum else words)
    lines = [whole if len(whole) <= WIDTH else _row("value", words)]
    planned = body.get("planned") or {}
    if planned.get("samples_per_s"):
        worth = planned.get("samples_per_usd")
        words = f"{rate(planned['samples_per_s'])} samples/s"
        words += f", {rate(worth)} per dollar" if worth else ""
        lines.append(_row("planned", f"{words}, of calm steps alone"))
    return lines


def fit(line: str) -> str:
    """The line, cut where it is wider than WIDTH."""
    return line if len(line) <= WIDTH else line[: WIDTH - 4].rstrip() + " ..."
