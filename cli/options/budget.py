"""The options `--max-cost`, `--max-hours` and `--max-instances`, for every command that starts a
run.

Rule: each sets a key of `[budget]` and is passed on as one more override.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from bamboo.errors import InputError

OPTIONS = (
    click.option("--max-cost", type=float, help="Stop at this many dollars (budget.max_usd)."),
    click.option("--max-hours", type=float, help="Stop after this many hours (budget.max_hours)."),
    click.option(
        "--max-instances", type=int, help="Never rent more at once (budget.max_instances)."
    ),
)


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options, and pass them on among the overrides. Raises InputError for a limit under
    which nothing could run."""

    @wraps(command)
    def with_limits(
        *,
        overrides: tuple[str, ...],
        max_cost: float | None,
        max_hours: float | None,
        max_instances: int | None,
        **others: Any,
    ) -> Any:
        given = {
            "max_usd": ("--max-cost", max_cost),
            "max_hours": ("--max-hours", max_hours),
            "max_instances": ("--max-instances", max_instances),
        }
        for option, value in given.values():
            if value is not None and not value > 0:
                raise InputError(f"{option} {value:g} lets nothing run; give a figure above 0")
        limits = (
            f"budget.{key}={value!r}" for key, (_, value) in given.items() if value is not None
        )
        return command(overrides=(*overrides, *limits), **others)

    out: Callable[..., Any] = with_limits
    for option in reversed(OPTIONS):
        out = option(out)
    return out
