"""The stack comes, stays and goes in a mock account; it goes although answers are lost. What was
done is asked for again, and the account says that it is gone, in the words that the provider takes
for done."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs

import pytest

from cli import main
from cloud.local.faults import Market
from cloud.local.http_server import Answer, Request
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
from tests.mock_account import ACCOUNT_CALLS, client_at, variables_of

pytestmark = [pytest.mark.full, pytest.mark.e2e, pytest.mark.timeout(580)]

TAKES_AWAY = ("Delete", "Terminate", "Detach", "Disassociate", "Revoke", "Remove", "Release")


class Forgetful(MockAws):
    """Carries out each request that takes something away, and hangs up before its first answer."""

    def __init__(self) -> None:
        super().__init__(
            metadata=MetadataService(),
            market=Market({}),
            on_change=lambda: None,
            calls=ACCOUNT_CALLS,
        )
        self.forgets = False
        self.lost: list[str] = []
        self._seen: set[tuple[str, str, bytes]] = set()

    def _answer(self, request: Request) -> Answer:
        method, path, body = request.method, request.path, request.body
        target = request.headers.get("x-amz-target", "").rpartition(".")[2]
        action = parse_qs(body.decode(errors="replace")).get("Action", [target])[0]
        name = action if action.startswith(TAKES_AWAY) else method
        asked = (name, path, body)
        answer = super()._answer(request)
        takes = name != method or method == "DELETE"
        if self.forgets and takes and asked not in self._seen:
            self._seen.add(asked)
            self.lost.append(f"{name} {path}")
            request.hang_up()
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
        **variables_of(aws.url, aws.token),
        "BAMBOO_HOME": str(tmp_path / "runs"),
        "BAMBOO_CONFIG": str(tmp_path / "cloud.toml"),
        "TF_CLI_ARGS_init": f"-backend=false -plugin-dir={plugin_dir()}",
    }
    for name, value in account.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TF_CLI_CONFIG_FILE", raising=False)
    ec2 = client_at(aws.url, aws.token)
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
