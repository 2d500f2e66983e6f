"""What an instance is told at its boot: the settings file that its agent's unit reads.

Rule: only names in `agent_names.txt` reach an instance. `infra/boot.sh` fetches that list from the
stack's own files and filters the settings by it, because many names run code by themselves
(PYTHONWARNINGS, LD_PRELOAD, AWS_CONFIG_FILE).
"""

import re
import shlex
from collections.abc import Mapping
from importlib.resources import files

from bamboo.errors import InputError

NAMES_FILE = "agent_names.txt"
_VALUE = re.compile(r"[A-Za-z0-9_.,:/@+=-]*")
"""Text that no shell, no systemd and no reader of lines interprets."""


def agent_names() -> tuple[str, ...]:
    """The names of all settings that an agent may have."""
    return tuple(files(__package__).joinpath(NAMES_FILE).read_text(encoding="ascii").split())


def agent_environment(values: Mapping[str, str]) -> str:
    """The text of `agent.env`: one `NAME="value"` per line, sorted, as `infra/boot.sh` and the
    EnvironmentFile of systemd read it. Raises InputError for a name or value that is not allowed
    there."""
    allowed, lines = agent_names(), []
    for name, value in sorted(values.items()):
        if name not in allowed:
            raise InputError(
                f"{name!r} cannot stand in agent.env: an instance is given no other names than "
                f"{', '.join(allowed)}; leave it out"
            )
        if not _VALUE.fullmatch(value):
            raise InputError(
                f"{name} cannot stand in agent.env: its value has a character beside letters, "
                "digits and _.,:/@+=-; give another value"
            )
        lines.append(f'{name}="{value}"\n')
    return "".join(lines)


def boot_script(*, bucket: str, script: str) -> str:
    """User data for a launch without the launch template: the bucket's name in front of the boot
    script, as in the template."""
    return f"#!/bin/bash\nexport BAMBOO_BUCKET={shlex.quote(bucket)}\n{script}"
