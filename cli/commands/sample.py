"""`bamboo sample`: a text that a run's language model goes on with."""

import json

import click

from bamboo import api
from cli.bar import bar
from cli.echo import echo_result
from cli.options.step import step_option


@click.command("sample")
@click.argument("run")
@click.option("--prompt", metavar="TEXT", required=True, help="What the text begins with.")
@click.option(
    "--length", type=int, default=100, show_default=True, help="The most tokens behind the prompt."
)
@click.option(
    "--temperature",
    type=float,
    default=1.0,
    show_default=True,
    help="0 takes the likeliest token each time; 1 draws by the model's own odds.",
)
@click.option(
    "--seed", type=int, default=0, show_default=True, help="The same seed gives the same text."
)
@click.option(
    "--tokenizer", metavar="FILE", help="A tokenizer.json, for tokens that came without one."
)
@step_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    run: str,
    prompt: str,
    length: int,
    temperature: float,
    seed: int,
    tokenizer: str | None,
    step: int | None,
    as_json: bool,
) -> None:
    """Let the language model of a run go on with a text.

    It has the run's own tokenizer where there is one, else bytes are tokens. Each token follows
    from the last model.context ones.
    """
    opened = api.open_run(run)
    with bar("sampling") as told:
        body = opened.sample(
            prompt,
            length=length,
            temperature=temperature,
            seed=seed,
            tokenizer=tokenizer,
            step=step,
            told=told,
        )
    echo_result(json.dumps(body) if as_json else body["text"])
