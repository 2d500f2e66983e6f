"""Each command of docs/aws.md that leads from nothing to a run and back, as it stands there, in an
account."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launches.own_account import ROOT, Account, an_account

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240)]


@pytest.fixture
def account(tmp_path: Path) -> Iterator[Account]:
    yield from an_account(tmp_path)


def commands_of_the_page() -> list[list[str]]:
    """Those of Bamboo itself in the section on a whole run, as they stand there."""
    text = (ROOT / "docs" / "aws.md").read_text()
    _, _, section = text.partition("## From nothing to a run, and back")
    lines = re.findall(
        r"^    \.venv/bin/bamboo ([^#\n]+)", section.partition("\n## ")[0], re.MULTILINE
    )
    return [line.split() for line in lines]


def test_each_command_of_the_page_on_accounts(account: Account) -> None:
    account.stack()
    small = ("--set", "model.layers=2", "--set", "model.width=16", "--set", "model.heads=2")
    small += ("--set", "train.steps=20", "--set", "data.max_bytes=20000")
    # The instances of the mock are processes of this machine, without a card.
    small += ("--set", "cluster.device=cpu", "--set", "cluster.allow_idle_gpu=true")
    ran = []
    for verb, *words in commands_of_the_page():
        code = 0
        if verb == "init":
            # A machine on loopback has no address outside, and nobody to be asked.
            words = [word for word in words if word != "--here"] + ["--yes"]
        if "--rent" in words:
            words.append("--yes")
        if "--destroy" in words:
            account.without_disks()
        if "examples/account.toml" in words:
            words = [str(ROOT / word) if word.endswith(".toml") else word for word in words]
            words += small
        if verb == "doctor" and "--orphans" not in words:
            code = 1  # the mock's account has the quotas of a new one: none
        said = account.run(verb, *words, code=code)
        ran.append(verb)
        if verb == "doctor" and code:
            faults = re.findall(r"^([\w -]+): (?:fault|unknown):", said, re.MULTILINE)
            assert faults == ["quotas"], said
    assert ran == ["init", "launch", "doctor", "launch", "cost", "verify", "doctor", "init"]
    assert not (account.folder / "cloud.toml").exists()
    receipt = json.loads((account.home / "first" / "receipt.json").read_text())
    assert (receipt["outcome"], receipt["final_note"]) == ("done", "")
    account.nothing_left("first")
    assert "first: it has ended; nothing of it is left" in account.run("stop", "first")
