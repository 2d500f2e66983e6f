"""`bamboo schedule`: draw a pipeline schedule as text, with its figures.

Rule: everything shown comes from the symbolic dry run; nothing is started or measured.
"""

import json
from dataclasses import asdict

import click

from bamboo.errors import InputError
from bamboo.planner.step.figures import figures, gap_budgets, plan_run
from bamboo.planner.step.layout import Costs, Layout, layout_of
from bamboo.planner.step.render import figures_text, grid_text
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import REDUNDANCY_MODES, REPLICA_MODES, wrong_with
from cli.echo import echo_result

LEGEND = (
    "F0: forward of microbatch 0; B0: its backward; FR0, BR0: the redundant ones, for the stage\n"
    "that the node shadows; -: the operation continues; .: the node waits. The drawing shows the\n"
    "first step, and what begins of the next one before its end; the figures are of later steps."
)
COLUMNS = (
    "in flight: microbatches between their forward and their backward, at most (one more than\n"
    "in 1F1B, but on the last stage); outputs, gradients: boundary tensors kept in case of a\n"
    "loss, of up to two steps; of the shadow: redundant forwards held at most, FR and BR done"
)
MAX_OPERATIONS = 50_000
"""Above this the drawing is useless, and the dry run takes seconds."""


@click.command("schedule")
@click.option("--stages", default=4, show_default=True, help="Stages of a pipeline (P).")
@click.option("--microbatches", default=8, show_default=True, help="Microbatches per step (M).")
@click.option("--pipelines", default=1, show_default=True, help="Copies of the pipeline (D).")
@click.option(
    "--redundancy",
    default="off",
    show_default=True,
    metavar="MODE[,MODE…]",
    help=f"What shadows compute in advance: {', '.join(REDUNDANCY_MODES)}; or for each stage "
    f"one of {', '.join(REPLICA_MODES)}.",
)
@click.option(
    "--forward-ms",
    default="20",
    show_default=True,
    metavar="MS[,MS…]",
    help="Forward of one microbatch: one time for all stages, or one per stage.",
)
@click.option(
    "--backward-ms",
    default="40",
    show_default=True,
    metavar="MS[,MS…]",
    help="Backward of one microbatch, likewise.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    stages: int,
    microbatches: int,
    pipelines: int,
    redundancy: str,
    forward_ms: str,
    backward_ms: str,
    as_json: bool,
) -> None:
    """Draw a pipeline schedule and its figures."""
    _check(stages, microbatches, pipelines)
    wrong = wrong_with(redundancy, stages)
    if wrong is not None:
        raise InputError(f"--redundancy {redundancy} {'; '.join(wrong)}")
    costs = Costs.of(
        stages,
        forward_s=_seconds("--forward-ms", forward_ms, stages),
        backward_s=_seconds("--backward-ms", backward_ms, stages),
    )
    grid = Grid(pipelines=pipelines, stages=stages)
    layout = layout_of(grid, microbatches=(microbatches,), mode=redundancy)
    timeline = plan_run(layout, costs)
    if as_json:
        found = {
            "schema_version": 1,
            "stages": stages,
            "microbatches": microbatches,
            "pipelines": pipelines,
            "redundancy": redundancy,
            "programs": [str(program) for program in layout.programs[0]],
            "gap_budgets": _budgets(layout, costs) if "gap" in layout.modes else {},
            "figures": asdict(figures(timeline, costs)),
        }
        echo_result(json.dumps(found, ensure_ascii=False))
        return
    echo_result(LEGEND)
    echo_result(grid_text(timeline))
    echo_result(figures_text(figures(timeline, costs)).rstrip("\n"))
    echo_result(COLUMNS)


def _check(stages: int, microbatches: int, pipelines: int) -> None:
    for name, value, least in (
        ("--stages", stages, 1),
        ("--microbatches", microbatches, 1),
        ("--pipelines", pipelines, 1),
    ):
        if value < least:
            raise InputError(f"{name} {value} is too small; give at least {least}")
    operations = stages * microbatches * pipelines
    if operations > MAX_OPERATIONS:
        raise InputError(
            f"{stages} stages x {microbatches} microbatches x {pipelines} pipelines are "
            f"{operations} forwards, too many to draw; stay below {MAX_OPERATIONS}"
        )


def _seconds(option: str, text: str, stages: int) -> tuple[float, ...]:
    """Read `20` or `20,20,30,40` milliseconds as seconds per stage."""
    try:
        figures_ms = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"{option} {text!r} is no list of figures; write one like 20, or {stages} like "
            f"{','.join(['20'] * stages)}"
        ) from None
    if len(figures_ms) not in (1, stages):
        raise InputError(
            f"{option} {text} has {len(figures_ms)} figures for {stages} stages; "
            f"give one for all, or {stages}"
        )
    if not all(0 < figure < 1e9 for figure in figures_ms):
        raise InputError(f"{option} {text}: every figure must lie above 0 and below 1e9")
    return tuple(figure / 1e3 for figure in figures_ms)


def _budgets(layout: Layout, costs: Costs) -> dict[str, dict[str, int]]:
    """Slot -> cursor -> redundant forwards that fit there."""
    return {
        str(slot): {str(cursor): count for cursor, count in budget.items()}
        for slot, budget in gap_budgets(layout, costs).items()
    }
