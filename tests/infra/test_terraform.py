"""The stack of terraform/: formatted, valid, keeps its promises."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.infra.terraform import ROOT, copy_stack, program, run, said_by

pytestmark = pytest.mark.timeout(400)
"""The first one also finds the provider."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    program()
    root = tmp_path_factory.mktemp("stack")
    yield copy_stack(root)
    # The provider's link or copy is big; temporary folders of the last runs are kept.
    shutil.rmtree(root)


def test_files_are_formatted() -> None:
    done = run(ROOT / "terraform", "fmt", "-check", "-diff", "-recursive")
    assert done.returncode == 0, done.stdout + done.stderr


def test_stack_is_valid(stack: Path) -> None:
    assert "The configuration is valid" in said_by(stack, "validate")


def test_stack_keeps_its_promises(stack: Path) -> None:
    assert " 0 failed" in said_by(stack, "test")
