"""The secret of a run in a mock account: it holds one login, carries the tags of stack and run, and
is gone without a trace when it is taken away."""

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from bamboo.errors import InputError
from bamboo.ids import RunId
from cloud.ec2 import secrets
from cloud.ec2.requests import RUN_TAG
from cloud.ec2.secrets import STACK_TAG, RunSecrets, read_secret
from cloud.provider import CloudRefused

REGION = "eu-west-1"
THERE = {"AWS_REGION": REGION}
RUN = RunId("calm-fox")


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with mock_aws():
        yield boto3.client("secretsmanager", region_name=REGION)


@pytest.fixture
def of_stack() -> RunSecrets:
    return RunSecrets(region=REGION, stack="bamboo")


def test_a_run_s_secret_is_of_the_stack_and_the_run(service: Any, of_stack: RunSecrets) -> None:
    of_stack.put(RUN, "rediss://u:first@host")
    of_stack.put(RUN, "rediss://u:second@host")
    assert read_secret("bamboo/runs/calm-fox", environment=THERE) == "rediss://u:second@host"
    (found,) = service.list_secrets()["SecretList"]
    assert {tag["Key"]: tag["Value"] for tag in found["Tags"]} == {
        STACK_TAG: "bamboo",
        RUN_TAG: "calm-fox",
    }


def test_a_secret_that_is_taken_away_is_gone_also_the_second_time(
    service: Any, of_stack: RunSecrets
) -> None:
    of_stack.put(RUN, "text")
    of_stack.delete(RUN)
    of_stack.delete(RUN)
    assert service.list_secrets(IncludePlannedDeletion=True)["SecretList"] == []
    of_stack.put(RUN, "again")


def test_the_runs_of_a_stack_are_told_and_no_other_s(service: Any, of_stack: RunSecrets) -> None:
    for run in ("b", "a"):
        of_stack.put(RunId(run), "text")
    RunSecrets(region=REGION, stack="other").put(RunId("c"), "text")
    for name in ("bamboo/runs/d/e", "bamboo-store", "bamboo/runs/No"):
        service.create_secret(Name=name, SecretString="text")
    assert of_stack.runs() == ("a", "b")


def test_a_name_that_is_going_is_waited_for(
    service: Any, of_stack: RunSecrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who deletes a secret at once may not make one of its name in the same moment."""
    of_stack.put(RUN, "text")
    service.delete_secret(SecretId="bamboo/runs/calm-fox", RecoveryWindowInDays=7)
    waits = []

    def gone(waited_s: float) -> None:
        waits.append(waited_s)
        of_stack.delete(RUN)

    refuses = iter((True, False))
    make = secrets.client_of

    def client_of(*arguments: Any, **more: Any) -> Any:
        client = make(*arguments, **more)
        create = client.create_secret

        def create_secret(**asked: Any) -> Any:
            if next(refuses):
                said = {"Error": {"Code": "InvalidRequestException", "Message": "is going"}}
                raise ClientError(said, "CreateSecret")
            return create(**asked)

        client.create_secret = create_secret
        return client

    monkeypatch.setattr(secrets, "client_of", client_of)
    monkeypatch.setattr(secrets.time, "sleep", gone)
    of_stack.put(RUN, "again")
    assert len(waits) == 1
    monkeypatch.setattr(secrets, "DELETION_S", -1.0)
    refuses = iter((True,))
    with pytest.raises(CloudRefused, match="making the secret 'bamboo/runs/calm-fox'"):
        of_stack.put(RUN, "once more")


@pytest.mark.parametrize("run", ["", "../x", "a/b", "*"])
def test_what_is_no_run_names_no_secret(of_stack: RunSecrets, run: str) -> None:
    with pytest.raises(InputError):
        of_stack.name(RunId(run))
