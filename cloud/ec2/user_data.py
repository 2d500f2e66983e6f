"""What an instance is told at its boot: the settings file that its agent's unit reads. Pure."""

import shlex
from collections.abc import Mapping

from bamboo.errors import InputError


def agent_environment(values: Mapping[str, str]) -> str:
    """The text of `agent.env`: one `NAME="value"` per line, sorted, as systemd's EnvironmentFile
    reads it. Raises InputError for a name or value that cannot stand in such a file."""
    lines = []
    for name, value in sorted(values.items()):
        # What cannot be printed would end the line, or the file, for one of its readers.
        if not (name.isascii() and name.isidentifier() and (value.isprintable() or not value)):
            raise InputError(
                f"{name!r} cannot stand in agent.env: its name, or a character of its value that "
                "cannot be printed; give another value"
            )
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        lines.append(f'{name}="{escaped}"\n')
    return "".join(lines)


def boot_script(*, bucket: str, script: str) -> str:
    """User data for a launch without the launch template: the bucket's name in front of the boot
    script, the way the template does it."""
    return f"#!/bin/bash\nexport BAMBOO_BUCKET={shlex.quote(bucket)}\n{script}"
