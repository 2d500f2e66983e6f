# What the stack promises, asked without an account: `terraform -chdir=terraform test`.

mock_provider "aws" {
  override_data {
    target = data.aws_partition.current
    values = { partition = "aws" }
  }
  mock_resource "aws_iam_instance_profile" {
    defaults = { arn = "arn:aws:iam::123456789012:instance-profile/bamboo-worker" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/bamboo-worker" }
  }
  mock_resource "aws_s3_bucket" {
    defaults = { id = "bamboo-mock", arn = "arn:aws:s3:::bamboo-mock" }
  }
}

run "defaults" {
  assert {
    condition     = length(output.subnets) == 3 && length(distinct([for s in aws_subnet.zone : s.cidr_block])) == 3
    error_message = "Each zone has a subnet with a range of its own."
  }

  assert {
    condition     = aws_launch_template.worker.metadata_options[0].http_tokens == "required" && aws_launch_template.worker.metadata_options[0].http_put_response_hop_limit == 1
    error_message = "The metadata service answers to tokens only, and one hop."
  }

  assert {
    condition     = aws_launch_template.worker.instance_initiated_shutdown_behavior == "terminate"
    error_message = "A worker that powers off must stop billing."
  }

  assert {
    condition     = aws_launch_template.worker.block_device_mappings[0].ebs[0].encrypted == "true" && aws_launch_template.worker.block_device_mappings[0].ebs[0].volume_size == 120
    error_message = "The root volume is encrypted and has a stated size."
  }

  assert {
    condition     = alltrue([for rule in aws_security_group.workers.ingress : rule.self && try(length(rule.cidr_blocks), 0) == 0 && rule.from_port > 22])
    error_message = "Workers are reached by workers only, and not by SSH."
  }

  assert {
    condition = alltrue([
      for s in jsondecode(aws_iam_role_policy.worker.policy).Statement :
      s.Effect == "Deny" || alltrue([for a in flatten([s.Action]) : startswith(a, "s3:")])
    ])
    error_message = "A worker is allowed nothing but the bucket."
  }

  assert {
    condition = contains(
      flatten([for s in jsondecode(aws_iam_role_policy.worker.policy).Statement : s.Action if s.Effect == "Deny"]),
      "ec2:TerminateInstances",
    )
    error_message = "A worker may not end instances, whatever else it is given."
  }

  assert {
    condition = alltrue([
      for s in jsondecode(aws_iam_policy.launcher.policy).Statement :
      s.Condition.StringLike["aws:ResourceTag/bamboo:run"] == "?*"
      if contains(flatten([s.Action]), "ec2:TerminateInstances")
    ])
    error_message = "The launcher ends tagged instances only."
  }

  assert {
    condition     = strcontains(base64decode(aws_launch_template.worker.user_data), "BAMBOO_BUCKET=bamboo-mock")
    error_message = "The boot script knows the bucket."
  }

  assert {
    condition     = length(aws_launch_template.worker.user_data) < 21848
    error_message = "User data is limited to 16 KiB before base64."
  }
}

run "one_zone" {
  variables {
    zones        = ["eu-central-1b"]
    region       = "eu-central-1"
    network_cidr = "172.20.0.0/20"
  }

  assert {
    condition     = aws_subnet.zone["eu-central-1b"].cidr_block == "172.20.0.0/24" && aws_vpc_endpoint.s3.service_name == "com.amazonaws.eu-central-1.s3"
    error_message = "Another region and another range are followed."
  }
}

run "same_zone_twice" {
  command = plan

  variables {
    zones = ["us-east-1a", "us-east-1a"]
  }

  expect_failures = [var.zones]
}

run "no_range" {
  command = plan

  variables {
    network_cidr = "ten dot something"
  }

  expect_failures = [var.network_cidr]
}
