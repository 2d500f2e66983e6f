"""A machine made of recorders: a script of infra/ runs on it, and harms nothing.

Rule: the script sees the commands that are given here and nothing else of this machine, so a
command that nobody thought of is an error and not a deed.
"""

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 30


class Machine:
    """A folder of commands. Each writes its name and arguments to `calls`, then does as told."""

    def __init__(self, folder: Path, *, real: Iterable[str] = ()) -> None:
        self.folder = folder
        self.bin = folder / "bin"
        self.bin.mkdir(parents=True)
        self._calls = folder / "calls"
        for name in ("bash", *real):
            found = shutil.which(name)
            assert found is not None, f"{name} is not on the path"
            (self.bin / name).symlink_to(found)

    def command(self, name: str, does: str = "") -> None:
        """Add a recorder that then runs these lines of shell."""
        path = self.bin / name
        path.write_text(f'#!/bin/bash\necho {name} "$@" >>"{self._calls}"\n{does}\n')
        path.chmod(0o755)

    def run(self, script: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """Run a script of infra/ here, with no other surroundings than these."""
        surroundings: Mapping[str, str] = {"PATH": str(self.bin)} | environment
        return subprocess.run(
            [self.bin / "bash", ROOT / "infra" / script],
            env=surroundings,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def calls(self, *names: str) -> list[str]:
        """The calls so far, of these commands or of all."""
        lines = self._calls.read_text().splitlines() if self._calls.exists() else []
        return [line for line in lines if not names or line.split(" ", 1)[0] in names]
