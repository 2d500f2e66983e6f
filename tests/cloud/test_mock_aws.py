"""What the local cloud takes for its own in the account that it plays: instances of a run."""

from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from cloud.ec2.requests import RUN_TAG
from cloud.local.faults import Market
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import INTERRUPTED, MockAws


def client_of(aws: MockAws) -> Any:
    return boto3.client(
        "ec2",
        region_name="us-east-1",
        endpoint_url=aws.url,
        aws_access_key_id="local",
        aws_secret_access_key="local",
    )


def test_what_the_cloud_took_stays_taken_whoever_ends_it_again() -> None:
    aws = MockAws(metadata=MetadataService(), market=Market({}), on_change=lambda: None)
    aws.start()
    try:
        client = client_of(aws)
        (made,) = client.run_instances(ImageId="ami-12345678", MinCount=1, MaxCount=1)["Instances"]
        name = made["InstanceId"]
        assert aws.interrupt(name)

        def shown() -> Any:
            (found,) = client.describe_instances(InstanceIds=[name])["Reservations"]
            one = found["Instances"][0]
            return one["StateReason"]["Code"], one["StateTransitionReason"]

        before = shown()
        assert before[0] == INTERRUPTED
        client.terminate_instances(InstanceIds=[name])
        assert shown() == before
        client.close()
    finally:
        aws.stop()


def test_a_launch_template_that_is_gone_is_not_known_by_its_id() -> None:
    """Terraform asks again where an answer was lost, and takes the one code alone for done."""
    aws = MockAws(metadata=MetadataService(), market=Market({}), on_change=lambda: None)
    aws.start()
    try:
        client = client_of(aws)
        data = {"ImageId": "ami-12345678"}
        made = client.create_launch_template(LaunchTemplateName="taken", LaunchTemplateData=data)
        known = {"LaunchTemplateId": made["LaunchTemplate"]["LaunchTemplateId"]}
        client.delete_launch_template(**known)
        with pytest.raises(ClientError) as caught:
            client.delete_launch_template(**known)
        assert caught.value.response["Error"]["Code"] == "InvalidLaunchTemplateId.NotFound"
        client.close()
    finally:
        aws.stop()


@pytest.mark.parametrize(("tag", "ours"), [(RUN_TAG, True), ("bamboo:stack", False)])
def test_only_instances_of_a_run_become_nodes(tag: str, ours: bool) -> None:
    """An account has others, such as the store of the stack: they get no agent."""
    aws = MockAws(metadata=MetadataService(), market=Market({}), on_change=lambda: None)
    before = {seen.instance for seen in aws.instances()}
    aws.start()
    try:
        client = client_of(aws)
        label = {"ResourceType": "instance", "Tags": [{"Key": tag, "Value": "r1"}]}
        answer = client.run_instances(
            ImageId="ami-12345678", MinCount=1, MaxCount=1, TagSpecifications=[label]
        )
        client.close()
    finally:
        aws.stop()
    made = answer["Instances"][0]["InstanceId"]
    assert ({seen.instance for seen in aws.instances()} - before == {made}) is ours
