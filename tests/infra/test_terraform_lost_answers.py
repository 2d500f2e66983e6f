"""The stack comes, stays and goes in a mock account; it goes although answers are lost. What was
done is asked for again, and the account says that it is gone, in the words that the provider takes
for done."""

import socket
from collections.abc import Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import boto3
import pytest

from cli import main
from cloud.local.faults import Market
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from tests.infra.terraform import (
    MOTO_OVERRIDE,
    STORE_IMAGE,
    copy_stack,
    plugin_dir,
    program,
    said_by,
)

pytestmark = [pytest.mark.full, pytest.mark.e2e, pytest.mark.timeout(580)]

TAKES_AWAY = ("Delete", "Terminate", "Detach", "Disassociate", "Revoke", "Remove", "Release")


class Forgetful(MockAws):
    """Carries out each request that takes something away, and hangs up before its first answer."""

    def __init__(self) -> None:
        super().__init__(
            metadata=MetadataService(), market=Market({}), on_change=lambda: None, quotas={}
        )
        self.forgets = False
        self.lost: list[str] = []
        self._seen: set[tuple[str, str, bytes]] = set()

    def _serve(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = BytesIO(body)
        method, path = str(environ["REQUEST_METHOD"]), str(environ["PATH_INFO"])
        target = str(environ.get("HTTP_X_AMZ_TARGET", "")).rpartition(".")[2]
        action = parse_qs(body.decode(errors="replace")).get("Action", [target])[0]
        name = action if action.startswith(TAKES_AWAY) else method
        asked = (name, path, body)
        answer = super()._serve(environ, start_response)
        takes = name != method or method == "DELETE"
        if self.forgets and takes and asked not in self._seen:
            self._seen.add(asked)
            self.lost.append(f"{name} {path}")
            environ["werkzeug.socket"].shutdown(socket.SHUT_RDWR)
        return answer


@pytest.fixture
def aws() -> Iterator[Forgetful]:
    mock = Forgetful()
    mock.start()
    yield mock
    mock.stop()


def test_a_destroy_whose_first_answers_are_all_lost_goes_through(
    aws: Forgetful, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program()
    stack = copy_stack(tmp_path / "stack")
    account = {
        "AWS_ENDPOINT_URL": aws.url,
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
        "BAMBOO_HOME": str(tmp_path / "runs"),
        "BAMBOO_CONFIG": str(tmp_path / "cloud.toml"),
        "TF_CLI_ARGS_init": f"-backend=false -plugin-dir={plugin_dir()}",
    }
    for name, value in account.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TF_CLI_CONFIG_FILE", raising=False)
    ec2 = boto3.client("ec2", region_name="us-east-1")
    image = ec2.register_image(Name="store", RootDeviceName="/dev/xvda")["ImageId"]
    (stack / "moto_override.tf").write_text(MOTO_OVERRIDE + STORE_IMAGE % image)
    said_by(stack, "apply", "-auto-approve", "-input=false", timeout_s=270)
    again = said_by(stack, "plan", "-detailed-exitcode", "-input=false", timeout_s=120)
    assert "No changes" in again
    aws.forgets = True
    assert main.run(["init", str(stack), "--destroy", "--yes"]) == 0
    assert "DeleteLaunchTemplate /" in aws.lost
    assert not ec2.describe_launch_templates()["LaunchTemplates"]
    assert not [v for v in ec2.describe_vpcs()["Vpcs"] if not v["IsDefault"]]
    ec2.close()
