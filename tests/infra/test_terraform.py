"""The stack of terraform/: formatted, valid, keeps its promises, and stands against a mock account.

All but the format need the AWS provider, which is not fetched here: BAMBOO_TERRAFORM_PLUGIN_DIR
names a directory for `terraform init -plugin-dir`, or a script beside the checkout prints one.
"""

import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer

ROOT = Path(__file__).resolve().parents[2]
FINDER = ROOT.parent / "shared" / "tools" / "terraform-plugin-dir"

MOTO_OVERRIDE = """
provider "aws" {
  access_key        = "test"
  secret_key        = "test"
  max_retries       = 2
  s3_use_path_style = true
}

# The mock applies a denial whatever its condition says.
resource "aws_s3_bucket_policy" "encrypted_transport_only" {
  count = 0
}
"""


@pytest.fixture(scope="module")
def terraform() -> str:
    found = shutil.which("terraform")
    if found is None:
        pytest.skip("terraform is not on the path")
    return found


@pytest.fixture(scope="module")
def plugin_dir() -> str:
    """Where the provider is, or a skip that says what to give."""
    given = os.environ.get("BAMBOO_TERRAFORM_PLUGIN_DIR")
    if given:
        return given
    if FINDER.exists():
        found = subprocess.run([FINDER], capture_output=True, text=True, timeout=60, check=False)
        if found.returncode == 0:
            return found.stdout.strip()
    pytest.skip("no AWS provider at hand: set BAMBOO_TERRAFORM_PLUGIN_DIR to a plugin directory")


@pytest.fixture(scope="module")
def stack(
    terraform: str, plugin_dir: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A copy of the stack with the provider in place; the tree itself gets no .terraform/."""
    root = tmp_path_factory.mktemp("stack")
    for folder in ("terraform", "infra"):
        shutil.copytree(
            ROOT / folder, root / folder, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*")
        )
    shutil.copy(ROOT / "constraints.txt", root)
    done = run(terraform, root / "terraform", "init", "-backend=false", f"-plugin-dir={plugin_dir}")
    assert done.returncode == 0, done.stdout + done.stderr
    yield root / "terraform"
    # The provider's link or copy is big; temporary folders of the last runs are kept.
    shutil.rmtree(root)


def run(
    terraform: str, folder: Path, *arguments: str, timeout_s: float = 100, **environment: str
) -> subprocess.CompletedProcess[str]:
    # A variable that names a configuration file which is not there makes every call complain.
    inherited = {k: v for k, v in os.environ.items() if k != "TF_CLI_CONFIG_FILE"}
    return subprocess.run(
        [terraform, arguments[0], "-no-color", *arguments[1:]],
        cwd=folder,
        env=inherited | {"TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"} | environment,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def test_files_are_formatted(terraform: str) -> None:
    done = run(terraform, ROOT / "terraform", "fmt", "-check", "-diff", "-recursive")
    assert done.returncode == 0, done.stdout + done.stderr


def test_stack_is_valid(terraform: str, stack: Path) -> None:
    done = run(terraform, stack, "validate")
    assert done.returncode == 0, done.stdout + done.stderr


def test_stack_keeps_its_promises(terraform: str, stack: Path) -> None:
    done = run(terraform, stack, "test")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.full
@pytest.mark.timeout(400)
def test_stack_comes_stays_and_goes(terraform: str, stack: Path) -> None:
    """Applied to a mock account, a second plan finds nothing to do, and destroy leaves nothing."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    (stack / "moto_override.tf").write_text(MOTO_OVERRIDE)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        host, port = server.get_host_and_port()
        for arguments in (
            ("apply", "-auto-approve", "-input=false"),
            ("plan", "-detailed-exitcode", "-input=false"),
            ("destroy", "-auto-approve", "-input=false"),
        ):
            done = run(terraform, stack, *arguments, AWS_ENDPOINT_URL=f"http://{host}:{port}")
            assert done.returncode == 0, done.stdout + done.stderr
    finally:
        server.stop()
        (stack / "moto_override.tf").unlink()
