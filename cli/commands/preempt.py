"""`bamboo preempt`: take the instance that owns a stage."""

import click

from bamboo import api
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
    """Kill a node of a run: take its instance away, at once or after a notice.

    It is the instance that owns the stage; `bamboo verify` shows afterwards that no bit differs. A
    job orders losses of its own at steps of your choice: launch it with --set
    'chaos.kill=[{step=5, stage=1}, {step=10, stage=0, notice_s=5.0}]'.

    In an account the instance is terminated and paid for to its last second. It gets no notice,
    because only the cloud can give one.
    """
    opened = api.open_run(run)
    sentence = opened.preempt(stage=stage, pipeline=pipeline, notice_s=notice_s)
    echo_result(f"{opened.id}: {sentence}")
