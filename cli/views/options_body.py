"""The options of a job as one JSON object and as CSV.

Rule: as in `options`; the figures are the same.
"""

import csv
from collections.abc import Iterable, Sequence
from io import StringIO
from math import isinf
from pathlib import Path
from typing import Any

from bamboo.planner.renting.chosen import Outcome
from bamboo.planner.renting.option import ON_DEMAND, Option
from bamboo.study.costing import JobCost
from cli.echo import printable
from cli.views.option_words import advice, auxiliary_body, market_words, not_considered, rates
from cli.views.quota import quota_body

SCHEMA_VERSION = 1
CSV_FIELDS = (
    *("instance_type", "market", "resilience", "spread", "pipelines", "stages", "nodes", "anchors"),
    *("bytes_of_fullest_node", "usd_per_hour", "samples_per_s", "samples_per_usd"),
    *("usd_per_million_tokens", "hours", "usd", "preemptions", "source", "launchable"),
)
SIMULATED_FIELDS = (
    *("hours_p50", "hours_p90", "usd_p50", "usd_p90", "preemptions", "restores"),
    *("whole_usd_p50", "whole_usd_p90"),
    *("samples_per_usd", "unfinished", "misses"),
)


def options_body(found: JobCost) -> dict[str, Any]:
    """For `--json`."""
    first = found.chosen.outcome
    return {
        "schema_version": SCHEMA_VERSION,
        "job": Path(found.job.file).name,
        "unit": found.job.counted,
        "modelled": True,
        "times": found.offers.source,
        "market": market_words(found),
        "losses": {name: rate.body() for name, rate in rates(found).items()},
        "catalogue": {
            "on_demand_seen": found.offers.catalogue.on_demand_seen,
            "spot_seen": found.offers.catalogue.spot_seen,
            "price_warnings": list(found.offers.price_warnings(found.job.cloud.zones)),
        },
        "seeds": found.seeds,
        "deadline_h": _finite(found.deadline_h),
        "budget_usd": _finite(found.budget_usd),
        "lines": found.table.lines,
        "options": [option_row(found, option) for option in found.rows],
        "behind": [
            {"option": line.name, "at_most_samples_per_usd": most}
            for line, most in found.table.behind
        ],
        "do_not_fit": {
            "lines": found.table.misfits.lines,
            "nearest": found.table.misfits.nearest,
            "types": dict(found.offers.too_large),
        },
        "not_considered": not_considered(found) or None,
        "too_slow": [line.name for line in found.table.too_slow],
        "checkpoint_and_restart": None
        if found.restarts is None
        else {
            "option": found.restarts.option.line.name,
            "terms": found.restarts_terms,
        }
        | _simulated(found, found.restarts),
        "chosen": None if first is None else first.option.line.name,
        "why": found.chosen.why,
        "notes": advice(found),
        "bought": None if first is None else bought(found, first),
        "quota": None if first is None else _quota_body(found, first.option),
        "beside": None if first is None else auxiliary_body(found.beside(first.option)),
        "break_even_per_node_hour": found.break_even.per_node_hour,
        "break_even": found.break_even.says,
        "redundancy": [
            {
                "case": case.name,
                "with_samples_per_usd": case.with_value,
                "without_samples_per_usd": case.without_value,
                "pays": case.pays,
            }
            for case in found.cases
        ],
    }


def option_row(found: JobCost, option: Option) -> dict[str, Any]:
    """What the planner says of an option, and its outcome where it was simulated."""
    line, plan = option.line, option.plan
    tokens = found.job.tokens_per_sample
    outcome = next((one for one in found.outcomes if one.option == option), None)
    return {
        "option": line.name,
        "instance_type": line.instance_type,
        "gpu": option.gpu,
        "market": line.market,
        "resilience": line.mode,
        "spread": line.spread,
        "zones": dict(option.zones) if line.market != ON_DEMAND else {},
        "pipelines": plan.choice.grid.pipelines,
        "stages": plan.choice.grid.stages,
        "cut": list(plan.choice.cut),
        "microbatch": plan.choice.microbatch,
        "recompute": plan.choice.saving.recompute,
        "host_moments": plan.choice.saving.host_moments,
        "nodes": plan.nodes,
        "anchors": option.anchors,
        "bytes_of_fullest_node": plan.choice.most_bytes,
        "bytes_by_stage": [stage.total for stage in plan.choice.memory],
        "usd_per_hour": plan.usd_per_hour,
        "samples_per_s": plan.expected_samples_per_s,
        "samples_per_usd": option.value,
        "usd_per_million_tokens": option.usd_per_million(tokens) if tokens else None,
        "hours": option.hours,
        "usd": option.usd,
        "preemptions": option.preemptions,
        "source": plan.source,
        "launchable": option.launchable,
        "simulated": None if outcome is None else _simulated(found, outcome),
    }


def options_csv(found: JobCost) -> str:
    """A line for each option; columns for simulated figures are empty where there are none."""
    lines: list[list[Any]] = [[*CSV_FIELDS, *(f"simulated_{name}" for name in SIMULATED_FIELDS)]]
    for option in found.rows:
        row = option_row(found, option)
        played = row["simulated"] or {}
        lines.append([row[name] for name in CSV_FIELDS] + [played.get(f) for f in SIMULATED_FIELDS])
    return csv_of(lines)


def csv_of(lines: Iterable[Sequence[Any]]) -> str:
    """The text of a table, in which no text is one that a spreadsheet would evaluate."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerows([_cell(value) for value in line] for line in lines)
    return out.getvalue()


def _cell(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    text = printable(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def _quota_body(found: JobCost, option: Option) -> list[dict[str, Any]]:
    catalogue, region = found.offers.catalogue, found.job.cloud.region
    return [
        need
        for spot, nodes in option.by_market().items()
        for need in quota_body(
            catalogue, {option.line.instance_type: nodes}, spot=spot, region=region
        )
    ]


def _simulated(found: JobCost, one: Outcome) -> dict[str, Any]:
    return {
        "hours_p50": _finite(one.hours_p50),
        "hours_p90": _finite(one.hours_p90),
        "usd_p50": _finite(one.usd_p50),
        "usd_p90": _finite(one.usd_p90),
        "whole_usd_p50": _finite(one.whole_usd_p50),
        "whole_usd_p90": _finite(one.whole_usd_p90),
        "preemptions": one.preemptions,
        "restores": one.restores,
        "samples_per_usd": one.value,
        "runs": one.runs,
        "unfinished": one.unfinished,
        "misses": misses(found, one),
    }


def bought(found: JobCost, first: Outcome) -> dict[str, float]:
    """Samples for the budget, and for text the tokens; empty without one."""
    if isinf(found.budget_usd):
        return {}
    half, most = first.samples_for(found.budget_usd)
    samples = {"p50": half, "p90": most, "asked": first.samples}
    tokens = found.job.tokens_per_sample
    of_text = {f"tokens_{name}": one * tokens for name, one in samples.items()} if tokens else {}
    return {f"samples_{name}": one for name, one in samples.items()} | of_text


def misses(found: JobCost, one: Outcome) -> str:
    """Which limit it does not meet in nine runs of ten."""
    if isinf(one.hours_p90):
        return "is not done"
    words = []
    if one.hours_p90 > found.deadline_h:
        words.append("misses the deadline")
    if one.whole_usd_p90 > found.budget_usd:
        words.append("misses the budget")
    return ", ".join(words)


def _finite(figure: float) -> float | None:
    return None if isinf(figure) else figure
