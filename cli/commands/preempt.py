"""`bamboo preempt`: take the instance that owns a stage."""

import click

from bamboo.coord.follow import Follower
from bamboo.core.transition import name_slots
from bamboo.errors import InputError
from bamboo.runs import run_folder
from bamboo.runs.live import live_store
from bamboo.sites import opened
from bamboo.topology.slots import Slot
from cli.echo import echo_result


@click.command("preempt")
@click.argument("run")
@click.option("--stage", type=int, required=True, help="The stage whose owner is lost.")
@click.option("--pipeline", type=int, default=0, show_default=True, help="Its pipeline.")
@click.option(
    "--notice",
    "notice_s",
    type=float,
    default=0.0,
    show_default=True,
    help="Seconds between the notice and the loss; 0 is no notice.",
)
def command(run: str, stage: int, pipeline: int, notice_s: float) -> None:
    """Take away the instance that owns a stage of a run.

    In an account the instance is terminated and paid for to its last second. It gets no notice,
    because only the cloud can give one.
    """
    if notice_s < 0:
        raise InputError(f"--notice {notice_s:g} is negative; give 0 for no notice, or seconds")
    folder = run_folder.find(run_folder.home(), run)
    with live_store(folder) as store:
        follower = Follower()
        follower.catch_up(store)
    state = follower.state
    if state is None or state.assignment is None:
        raise InputError(f"run {folder.id} is still forming; wait until its nodes have slots")
    slot = Slot(pipeline=pipeline, stage=stage)
    if slot not in state.grid.slots():
        raise InputError(
            f"run {folder.id} has no stage {stage} in a pipeline {pipeline}: take --pipeline "
            f"{_numbers(state.grid.pipelines)} and --stage {_numbers(state.grid.stages)}"
        )
    node = state.node(state.assignment.owner(slot))
    if node is None or not node.status.live:
        raise InputError(f"nobody owns stage {stage} of pipeline {pipeline}: {state.sentence}")
    opened.site_of(folder).preempt(node.instance, notice_s=notice_s, cause="by hand")
    owned = state.assignment.owned_by(node.id)
    how = f"with {notice_s:g} s notice" if notice_s else "without notice"
    echo_result(
        f"{folder.id}: {node.instance} ({node.zone}, {name_slots(state, owned)}) is taken {how}"
    )


def _numbers(count: int) -> str:
    """`0 to 3` of four."""
    return "0" if count == 1 else f"0 to {count - 1}"
