"""The stack of terraform/: formatted, valid, keeps its promises, stands against a mock account."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

from tests.infra.terraform import MOTO_OVERRIDE, ROOT, copy_stack, program, run, said_by

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


@pytest.mark.full
def test_stack_comes_stays_and_goes(stack: Path) -> None:
    """Applied to a mock account, a second plan finds nothing to do, and destroy leaves nothing."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    (stack / "moto_override.tf").write_text(MOTO_OVERRIDE)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        account = {"AWS_ENDPOINT_URL": f"http://{host}:{port}"}
        said_by(stack, "apply", "-auto-approve", "-input=false", timeout_s=200, **account)
        second = said_by(stack, "plan", "-detailed-exitcode", "-input=false", **account)
        assert "No changes" in second
        said_by(stack, "destroy", "-auto-approve", "-input=false", timeout_s=200, **account)
    finally:
        server.stop()
        (stack / "moto_override.tf").unlink()
