"""The options of a job as text; `options_body` has them as JSON and CSV.

Rule: a row that was simulated shows the result, any other row what the planner expects, and each
says which; every dollar is modelled.
"""

from math import inf, isinf
from pathlib import Path
from typing import Any

from bamboo.planner.plans.candidates import saving_words
from bamboo.planner.profiles.workload import NO_SAVING
from bamboo.planner.renting.chosen import Outcome
from bamboo.planner.renting.option import HOUR_S, ON_DEMAND, Option
from bamboo.quantities import count, duration, number, rate, size, usd
from bamboo.sim.ways import CHECKPOINT_RESTART
from bamboo.study.costing import JobCost
from bamboo.study.outcomes import DEEP, MOST_LOSSES, MOST_LOSSES_IF_DEEP
from cli.echo import WIDEST, columns, fitting, fold, paragraph
from cli.views.option_words import advice, auxiliary_lines, market_words, not_considered
from cli.views.options_body import bought, misses
from cli.views.quota import quota_lines


def options_text(found: JobCost, *, width: int | None = None) -> str:
    """The table, what was played of it, and what to take; `width` is that of the terminal."""
    table = found.table
    modelled = found.offers.modelled
    doubt = "; no GPU has confirmed them" if modelled else ", the same for every type"
    lines = [
        f"{Path(found.job.file).name}: {count(table.lines, 'option')}, "
        f"{count(found.job.train.steps, 'step')} of {count(found.job.train.batch, 'sample')}",
        *_quota(found),
        *paragraph(f"step times {found.offers.source}{doubt}"),
        *paragraph(f"market: {market_words(found)}; all dollars are modelled"),
        *_plans(found, width or WIDEST),
        *_behind(found),
        *_played(found, width or WIDEST),
        *_verdict(found),
        *_redundancy(found),
        *(line for said in advice(found) for line in paragraph(said)),
        *paragraph(_priced(found)),
        *(
            line
            for said in found.offers.price_warnings(found.job.cloud.zones)
            for line in paragraph(said)
        ),
    ]
    text = "\n".join(lines)
    return text if width is None else fold(text, width=width)


def _priced(found: JobCost) -> str:
    """The date of the prices: of the types in the table, or without one of all that were
    compared."""
    catalogue = found.offers.catalogue
    named = [row.line.instance_type for row in found.rows]
    return catalogue.sources(named or catalogue.types)


def _plans(found: JobCost, width: int) -> list[str]:
    header = ("", "type", "market", "resilience", "zones", "grid", "fullest", "$/h", "samples/s")
    tokens = found.job.tokens_per_sample
    per_million = f"$ per M {'tokens' if tokens else 'samples'}"
    rows: list[tuple[str, ...]] = [(*header, "samples per $", per_million)]
    if not found.rows:
        return []
    for place, option in enumerate(found.rows, start=1):
        plan, grid = option.plan, option.plan.choice.grid
        rows.append(
            (
                str(place),
                option.line.instance_type,
                option.line.market,
                option.line.resilience,
                option.line.spread,
                f"{grid.pipelines} x {grid.stages}",
                size(plan.choice.most_bytes) + "*" * (plan.choice.saving != NO_SAVING),
                usd(plan.usd_per_hour),
                number(plan.expected_samples_per_s),
                rate(option.value),
                usd(option.usd_per_million(tokens)),
            )
        )
    right = frozenset({0, 5, 6, 7, 8, 9, 10})
    lines = fitting(rows, width=width, spare=(4, 6, 10, 8, 7), right=right)
    savings = (option.plan.choice.saving for option in found.rows)
    if keys := dict.fromkeys(words for saving in savings for words in saving_words(saving)):
        lines += paragraph(f"* with {' or '.join(keys)}, to save memory")
    if found.outcomes:
        lines += paragraph(
            "rows that were played come first, by what came out; then by the planner's figures"
        )
    return lines


def _behind(found: JobCost) -> list[str]:
    table, lines = found.table, []
    if table.behind:
        most = max(value for _, value in table.behind)
        many = len(table.behind)
        verb = "is" if many == 1 else "are"
        lines += [f"  {count(many, 'more option')} {verb} worth {rate(most)} samples per $ at most"]
    if table.misfits.lines:
        lines += paragraph(
            f"{count(table.misfits.lines, 'option')} do not fit into memory; nearest: "
            f"{table.misfits.nearest}"
        )
    for name, why in found.offers.too_large.items():
        lines += paragraph(f"{name} is out: {why}")
    lines += paragraph(not_considered(found))
    if table.too_slow:
        slow = count(len(table.too_slow), "option")
        lines += [f"  {slow} would take longer than {found.deadline_h:g} h"]
    return lines


def _played(found: JobCost, width: int) -> list[str]:
    """What was simulated, with on-demand and checkpoint-restart for comparison."""
    if not found.outcomes:
        return []
    places = list(found.rows)
    header = ("", "simulated", "taken", "restores", "time p50", "time p90", "$ p50", "$ p90")
    rows: list[tuple[str, ...]] = [(*header, "samples per $", "")]
    ranked = sorted(found.outcomes, key=lambda one: -one.value)
    named = [(str(places.index(o.option) + 1), _short(o.option), o) for o in ranked]
    if found.restarts is not None:
        named.append(("", f"{CHECKPOINT_RESTART}*, {_type(found.restarts.option)}", found.restarts))
    for mark, name, one in named:
        rows.append(
            (
                mark,
                name,
                number(round(one.preemptions)),
                number(round(one.restores)),
                _figure(one.hours_p50, _time),
                _figure(one.hours_p90, _time),
                _figure(one.whole_usd_p50, usd),
                _figure(one.whole_usd_p90, usd),
                rate(one.value),
                misses(found, one),
            )
        )
    right = frozenset({0, 2, 3, 4, 5, 6, 7, 8})
    lines = fitting(rows, width=width, spare=(3, 2, 5, 8, 6), right=right)
    if found.restarts is not None:
        lines += paragraph(
            f"* a model of another way to use the plan of {found.restarts.option.line.name}: "
            f"{found.restarts_terms}"
        )
    lines += paragraph(
        f"{count(found.seeds, 'run')} a row (seeds 0 to {found.seeds - 1}), each up to "
        f"{MOST_LOSSES} losses, or {MOST_LOSSES_IF_DEEP} where a pipeline has more than {DEEP} "
        "stages; $ with all costs, samples per $ of instances alone"
    )
    return lines


def _verdict(found: JobCost) -> list[str]:
    first = found.chosen.outcome
    if first is None:
        return paragraph(found.chosen.why)
    lines = paragraph(f"take {first.option.line.name}: {found.chosen.why}")
    if first.option.anchors:
        lines += paragraph(f"its anchors: bamboo launch --set {_anchors(first.option)}")
    planned = max((o.option for o in found.outcomes if o.option.launchable), key=_value)
    if _value(planned) > _value(first.option):
        lines += paragraph(
            f"by the planner's figures {planned.line.name} is worth more; what was played decides"
        )
    fixed = next((o for o in found.outcomes if o.option.line.market == ON_DEMAND), None)
    if fixed is not None and fixed is not first and fixed.value:
        share = first.value / fixed.value
        lines += [f"  that is {share:.2f} times the samples per dollar of the best on demand"]
    better = next((o for o in found.rows if not o.launchable and o.value > first.value), None)
    if better is not None:
        lines += paragraph(
            f"{better.line.name} would be worth {rate(better.value)} with anchors in chosen slots; "
            f"--set {_anchors(better)} buys as many, and they take the slots that come"
        )
    if found.restarts is not None and found.restarts.value > first.value:
        times = found.restarts.value / first.value if first.value else inf
        lines += paragraph(
            f"{CHECKPOINT_RESTART} would be worth {times:.3g} times as much here: it has the step "
            "times of this plan, and writes its checkpoints while it trains; the option "
            "with checkpoints only comes nearer to it with a smaller checkpoint.every_steps and a "
            "longer cluster.patience_s"
        )
    lines += auxiliary_lines(found.beside(first.option))
    return [*lines, *_bought(found, first)]


def _anchors(option: Option) -> str:
    return f"cloud.anchors={option.anchors}"


def _value(option: Option) -> float:
    return option.value


def _quota(found: JobCost) -> list[str]:
    """The quota that the account needs for the option that is taken."""
    if found.chosen.outcome is None:
        return []
    option, catalogue = found.chosen.outcome.option, found.offers.catalogue
    return [
        line
        for spot, nodes in option.by_market().items()
        for line in quota_lines(
            catalogue,
            {option.line.instance_type: nodes},
            spot=spot,
            region=found.job.cloud.region,
        )
    ]


def _bought(found: JobCost, first: Outcome) -> list[str]:
    """What the budget buys."""
    there = bought(found, first)
    if not there:
        return []
    what = "tokens" if found.job.tokens_per_sample else "samples"
    return paragraph(
        f"${found.budget_usd:,.2f}, all costs included, buy "
        f"{_many(there[f'{what}_p50'])} {what} in half of the runs "
        f"and {_many(there[f'{what}_p90'])} in nine of ten; the job asks for "
        f"{_many(there[f'{what}_asked'])}"
    )


def _redundancy(found: JobCost) -> list[str]:
    lines = paragraph(f"{found.break_even.says} (By the planner, with the plans of the table.)")
    if not found.cases:
        return lines
    rows: list[tuple[str, ...]] = [("on spot, modelled", "with", "without", "redundancy")]
    for case in found.cases:
        pays = "pays" if case.pays else "does not pay"
        rows.append((case.name, rate(case.with_value), rate(case.without_value), pays))
    return [*lines, *columns(rows, indent=4, right=frozenset({1, 2}))]


def _short(option: Option) -> str:
    return f"{_type(option)} {option.line.market}, {option.line.resilience}"


def _type(option: Option) -> str:
    grid = option.plan.choice.grid
    return f"{grid.pipelines} x {grid.stages} {option.line.instance_type}"


def _figure(figure: float, shown: Any) -> str:
    return "never" if isinf(figure) else str(shown(figure))


def _time(hours: float) -> str:
    return duration(hours * HOUR_S)


def _many(things: float) -> str:
    for word, unit in (("billion", 1e9), ("million", 1e6)):
        if things >= unit:
            return f"{things / unit:.3g} {word}"
    return f"{things:,.0f}"
