"""A stack for tests of `bamboo init`: its directory, and a `terraform` that notes its calls."""

import json
import os
from pathlib import Path

import pytest

from tests.sites.test_init import text_of

VARIABLES = 'variable "zones" {\n}\nvariable "launcher_cidrs" {\n}\nvariable "region" {\n}\n'


def changes(**actions: list[str]) -> str:
    made = [
        {"address": f"{kind}.x", "type": kind, "change": {"actions": one}}
        for kind, one in actions.items()
    ]
    return json.dumps({"resource_changes": made})


class Stack:
    """A directory of a stack, and a `terraform` on the path that notes each call."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.path, self.bin = folder, folder / "terraform", folder / "bin"
        self.path.mkdir()
        (self.path / "variables.tf").write_text(VARIABLES)
        (folder / "outputs.json").write_text(text_of())
        self.bin.mkdir()
        self.plan(aws_vpc=["create"], aws_instance=["create"])
        self.does()

    def plan(self, **actions: list[str]) -> None:
        (self.folder / "plan.json").write_text(changes(**actions))

    def does(self, verb: str = "none", what: str = "") -> None:
        """Beside what each verb says, `verb` does this."""
        program = self.bin / "terraform"
        program.write_text(
            f"""#!/bin/bash
shift
echo "$@" >>"{self.folder}/calls"
case "$1" in
    output) cat "{self.folder}/outputs.json" ;;
    show) cat "{self.folder}/plan.json" ;;
    apply) echo "aws_vpc.x: Creating..." ;;
esac
case "$1" in
    {verb}) {what or ":"} ;;
esac
"""
        )
        program.chmod(0o755)

    def calls(self) -> list[str]:
        path = self.folder / "calls"
        lines = path.read_text().splitlines() if path.exists() else []
        return [line.split()[0] for line in lines]


def stack_on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    """A stack in `folder`, where we are now; its Terraform is the one that is found."""
    made = Stack(folder)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("BAMBOO_CONFIG", str(folder / "cloud.toml"))
    monkeypatch.chdir(folder)
    return made
