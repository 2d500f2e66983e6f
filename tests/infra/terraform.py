"""Terraform for tests: the program, a provider that is at hand, and a copy of the stack.

All but the format need the AWS provider, which is not fetched here: BAMBOO_TERRAFORM_PLUGIN_DIR
names a directory for `terraform init -plugin-dir`, or a script beside the checkout prints one.
"""

import functools
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FINDER = ROOT.parent / "shared" / "tools" / "terraform-plugin-dir"
FINDER_S = 240
"""It looks through the whole disk, which takes minutes where that is cold and others use it too."""

MOTO_OVERRIDE = """
provider "aws" {
  max_retries       = 2
  s3_use_path_style = true
}

# The mock applies a denial whatever its condition says.
resource "aws_s3_bucket_policy" "encrypted_transport_only" {
  count = 0
}
"""


STORE_IMAGE = """
resource "aws_instance" "store" {
  ami = "%s"
}
"""
"""The local cloud has no images but those that are registered there."""


def program() -> str:
    """Terraform, or a skip."""
    found = shutil.which("terraform")
    if found is None:
        pytest.skip("terraform is not on the path")
    return found


@functools.cache
def plugin_dir() -> str:
    """Where the provider is, or a skip that says what to give."""
    given = os.environ.get("BAMBOO_TERRAFORM_PLUGIN_DIR")
    if given:
        return given
    if FINDER.exists():
        found = subprocess.run(
            [FINDER], capture_output=True, text=True, timeout=FINDER_S, check=False
        )
        if found.returncode == 0:
            return found.stdout.strip()
    pytest.skip("no AWS provider at hand: set BAMBOO_TERRAFORM_PLUGIN_DIR to a plugin directory")


def copy_stack(root: Path) -> Path:
    """A copy of the stack below `root` with the provider in place; the tree gets no .terraform/."""
    provider = plugin_dir()
    for folder in ("terraform", "infra"):
        shutil.copytree(
            ROOT / folder, root / folder, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*")
        )
    for name in ("constraints.txt", "cloud/ec2/agent_names.txt"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, root / name)
    said = said_by(root / "terraform", "init", "-backend=false", f"-plugin-dir={provider}")
    assert "has been successfully initialized" in said
    return root / "terraform"


def said_by(folder: Path, *arguments: str, timeout_s: float = 100, **environment: str) -> str:
    """What terraform says; it must succeed."""
    done = run(folder, *arguments, timeout_s=timeout_s, **environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run(
    folder: Path, *arguments: str, timeout_s: float = 100, **environment: str
) -> subprocess.CompletedProcess[str]:
    # A variable that names a configuration file which is not there makes every call complain.
    inherited = {k: v for k, v in os.environ.items() if k != "TF_CLI_CONFIG_FILE"}
    with subprocess.Popen(
        [program(), arguments[0], "-no-color", *arguments[1:]],
        cwd=folder,
        env=inherited | {"TF_IN_AUTOMATION": "1", "CHECKPOINT_DISABLE": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout_s)
        finally:  # a provider is a process of its own, and outlives it
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)
