"""What the local cloud takes for its own in the account that it plays: instances of a run."""

from typing import Any

import pytest
from botocore.exceptions import ClientError

from cloud.ec2.requests import RUN_TAG
from cloud.local.faults import Market
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import INTERRUPTED, MockAws
from tests.mock_account import ACCOUNT_CALLS, client_at


def client_of(aws: MockAws, service: str = "ec2") -> Any:
    return client_at(aws.url, aws.token, service)


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


def test_a_removal_that_is_asked_for_again_is_answered_as_aws_does() -> None:
    """Terraform asks again where an answer was lost, and takes these words alone for done."""
    aws = MockAws(
        metadata=MetadataService(),
        market=Market({}),
        on_change=lambda: None,
        calls=ACCOUNT_CALLS,
    )
    aws.start()
    try:
        client = client_of(aws)
        data = {"ImageId": "ami-12345678"}
        made = client.create_launch_template(LaunchTemplateName="taken", LaunchTemplateData=data)
        template = made["LaunchTemplate"]["LaunchTemplateId"]
        client.delete_launch_template(LaunchTemplateId=template)
        with pytest.raises(ClientError) as caught:
            client.delete_launch_template(LaunchTemplateId=template)
        assert caught.value.response["Error"]["Code"] == "InvalidLaunchTemplateId.NotFound"

        network = client.create_vpc(CidrBlock="10.9.0.0/16")["Vpc"]["VpcId"]
        table = client.create_route_table(VpcId=network)["RouteTable"]["RouteTableId"]
        endpoint = client.create_vpc_endpoint(
            VpcId=network,
            VpcEndpointType="Gateway",
            ServiceName="com.amazonaws.us-east-1.s3",
            RouteTableIds=[table],
        )["VpcEndpoint"]
        for _ in range(2):
            left = client.delete_vpc_endpoints(VpcEndpointIds=[endpoint["VpcEndpointId"]])
            assert not left["Unsuccessful"]

        iam = client_of(aws, "iam")
        iam.create_role(RoleName="taken", AssumeRolePolicyDocument="{}")
        iam.create_instance_profile(InstanceProfileName="taken")
        both = {"InstanceProfileName": "taken", "RoleName": "taken"}
        iam.add_role_to_instance_profile(**both)
        iam.remove_role_from_instance_profile(**both)
        with pytest.raises(iam.exceptions.NoSuchEntityException):
            iam.remove_role_from_instance_profile(**both)
        iam.delete_instance_profile(InstanceProfileName="taken")
        iam.delete_role(RoleName="taken")
        client.delete_route_table(RouteTableId=table)
        client.delete_vpc(VpcId=network)
    finally:
        aws.stop()


def test_a_template_has_tags_of_its_own_and_gives_those_that_it_holds() -> None:
    """Terraform would find a difference for ever, were the first shown among the others."""
    aws = MockAws(
        metadata=MetadataService(), market=Market({}), on_change=lambda: None, calls=ACCOUNT_CALLS
    )
    aws.start()
    try:
        client = client_of(aws)
        tags = [{"Key": "of", "Value": "it"}]
        own = {"ResourceType": "launch-template", "Tags": tags}
        held = {"ResourceType": "volume", "Tags": tags}
        for name, data in (("plain", {}), ("holds", {"TagSpecifications": [held]})):
            client.create_launch_template(
                LaunchTemplateName=name,
                LaunchTemplateData={"ImageId": "ami-12345678", **data},
                TagSpecifications=[own],
            )
            (shown,) = client.describe_launch_templates(LaunchTemplateNames=[name])[
                "LaunchTemplates"
            ]
            assert shown["Tags"] == tags
            (version,) = client.describe_launch_template_versions(LaunchTemplateName=name)[
                "LaunchTemplateVersions"
            ]
            given = version["LaunchTemplateData"].get("TagSpecifications", [])
            assert given == data.get("TagSpecifications", [])
            client.delete_launch_template(LaunchTemplateName=name)
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
