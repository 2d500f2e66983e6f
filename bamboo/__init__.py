"""Bamboo trains a pipeline of GPU stages on preemptible machines, bit for bit.

`bamboo.api` is for Python programs, and its functions are here too: `bamboo.launch("job.toml")`.
They are loaded when they are first asked for, so `import bamboo` costs nothing; `__init__.pyi` has
their types.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"
__all__ = (
    "BambooError",
    "InputError",
    "Run",
    "cost",
    "examine",
    "launch",
    "list_runs",
    "load_job",
    "open_run",
    "plan",
    "prices",
    "profile",
    "simulate",
    "stop_all",
    "stop_run",
)


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'bamboo' has no attribute {name!r}")
    where = "bamboo.errors" if name.endswith("Error") else "bamboo.api"
    return getattr(import_module(where), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
