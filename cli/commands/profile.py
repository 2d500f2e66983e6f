"""`bamboo profile`: what each layer of a job takes, in time and bytes, here or on a named GPU."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import Progress

from cli.echo import echo_result, progress_is_hidden
from cli.profiling import Wanted, profile_job
from cli.views.profile import profile_body, profile_text


@click.command("profile")
@click.argument("job", type=click.Path(path_type=Path))
@click.option(
    "--device",
    type=click.Choice(["cpu", "cuda"]),
    default="cpu",
    show_default=True,
    help="Measure on this.",
)
@click.option(
    "--gpu", metavar="NAME", help="Model a GPU instead, such as T4, by published figures."
)
@click.option(
    "--seconds", type=float, default=60.0, show_default=True, help="Time to measure in, at most."
)
@click.option("--fresh", is_flag=True, help="Measure again, whatever is kept.")
@click.option(
    "--set", "overrides", multiple=True, metavar="SECTION.KEY=VALUE", help="Override a key."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(
    *,
    job: Path,
    device: str,
    gpu: str | None,
    seconds: float,
    fresh: bool,
    overrides: tuple[str, ...],
    as_json: bool,
) -> None:
    """Measure the layers of a job: times, parameters, activations, stash."""
    wanted = Wanted(device=device, gpu=gpu, limit_s=seconds, fresh=fresh)
    found = profile_job(job, wanted, overrides=overrides, progress=_bar)
    echo_result(json.dumps(profile_body(found)) if as_json else profile_text(found))


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, while somebody looks at it."""
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=progress_is_hidden()) as bar:
        task = bar.add_task("measuring", total=None)
        yield lambda done, of_all: bar.update(task, completed=done, total=of_all)
