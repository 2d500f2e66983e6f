"""`bamboo export`: what a run has trained, as other programs read it."""

import json
from pathlib import Path

import click

from bamboo import api
from cli.echo import echo_result
from cli.options.step import step_option
from cli.views.afterwards import exported_text


@click.command("export")
@click.argument("run")
@click.option(
    "--to", metavar="DIR", required=True, type=click.Path(path_type=Path), help="A new folder."
)
@step_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["safetensors", "dcp"]),
    default="safetensors",
    show_default=True,
    help="dcp: for torch.distributed.checkpoint.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(*, run: str, to: Path, step: int | None, form: str, as_json: bool) -> None:
    """Write what a run has trained, for other programs.

    A Hugging Face model becomes a folder that from_pretrained loads, with LoRA one that peft loads;
    any other model becomes one file, model.safetensors, which load_state_dict of your own module
    takes.
    """
    body = api.open_run(run).export(to, step=step, format=form)
    echo_result(json.dumps(body) if as_json else exported_text(body))
