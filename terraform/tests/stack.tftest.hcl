# What the stack promises, asked without an account: `terraform -chdir=terraform test`.

mock_provider "aws" {
  override_data {
    target = data.aws_partition.current
    values = { partition = "aws" }
  }
  mock_resource "aws_iam_policy" {
    defaults = { arn = "arn:aws:iam::123456789012:policy/bamboo/us-east-1/bamboo/bamboo-runs-us-east-1-bamboo" }
  }
  override_data {
    target = data.aws_ssm_parameter.store_image
    values = { insecure_value = "ami-0123456789abcdef0" }
  }
  mock_resource "aws_secretsmanager_secret" {
    defaults = { arn = "arn:aws:secretsmanager:us-east-1:123456789012:secret:bamboo-store-1" }
  }
  mock_resource "aws_iam_role" {
    defaults = { arn = "arn:aws:iam::123456789012:role/bamboo-store" }
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
    condition     = alltrue([for rule in aws_security_group.store.ingress : rule.from_port == 6379 && rule.to_port == 6379 && try(length(rule.cidr_blocks), 0) == 0 && rule.security_groups == toset([aws_security_group.workers.id])]) && length(aws_security_group.store.ingress) == 1
    error_message = "The store is reached by workers only, on its own port."
  }

  assert {
    condition     = alltrue([for rule in aws_security_group.store.egress : rule.from_port == 443 && rule.to_port == 443])
    error_message = "The store fetches packages and says its secrets; it calls nobody else."
  }

  assert {
    condition     = try(length(aws_default_security_group.closed.ingress), 0) == 0 && try(length(aws_default_security_group.closed.egress), 0) == 0
    error_message = "What names no group talks to nobody."
  }

  assert {
    condition     = aws_instance.store.metadata_options[0].http_tokens == "required" && aws_instance.store.metadata_options[0].http_put_response_hop_limit == 1
    error_message = "The store's metadata answers to tokens only, and one hop."
  }

  assert {
    condition     = aws_instance.store.root_block_device[0].encrypted && aws_instance.store.ami == "ami-0123456789abcdef0" && length(aws_instance.store.instance_market_options) == 0
    error_message = "The store's disk is encrypted, its image is the one asked for, and it is on demand."
  }

  assert {
    condition     = strcontains(aws_instance.store.user_data, "BAMBOO_ADMIN_SECRET=arn:aws:secretsmanager") && !can(regex("(?i)(password|secret_string|private key)=\\S", aws_instance.store.user_data))
    error_message = "The store is told which secrets are its own, and none of what is in them."
  }

  assert {
    condition     = !contains(keys(aws_instance.store.tags), "bamboo:run")
    error_message = "The store is of no run: a launcher may not end it."
  }

  assert {
    condition     = aws_s3_bucket_public_access_block.this.block_public_acls && aws_s3_bucket_public_access_block.this.block_public_policy && aws_s3_bucket_public_access_block.this.ignore_public_acls && aws_s3_bucket_public_access_block.this.restrict_public_buckets
    error_message = "The bucket is nobody else's."
  }

  assert {
    condition     = aws_s3_bucket_versioning.this.versioning_configuration[0].status == "Enabled" && one(one(aws_s3_bucket_server_side_encryption_configuration.this.rule).apply_server_side_encryption_by_default).sse_algorithm == "AES256"
    error_message = "The bucket keeps versions, encrypted."
  }

  assert {
    condition     = length(aws_s3_bucket_lifecycle_configuration.this.rule) == 1 && aws_s3_bucket_lifecycle_configuration.this.rule[0].noncurrent_version_expiration[0].noncurrent_days == 1 && aws_s3_bucket_lifecycle_configuration.this.rule[0].abort_incomplete_multipart_upload[0].days_after_initiation == 3
    error_message = "Old versions and broken uploads go; runs stay unless asked."
  }

  assert {
    condition = alltrue([
      for s in jsondecode(aws_s3_bucket_policy.encrypted_transport_only.policy).Statement :
      s.Effect == "Deny" && s.Principal == "*" && s.Action == "s3:*" && s.Condition.Bool["aws:SecureTransport"] == "false" && contains(s.Resource, "arn:aws:s3:::bamboo-mock/*")
    ])
    error_message = "Whoever comes in the clear is refused."
  }

  # What each role may do is asked of these documents in tests/infra; here, that they are the ones.
  assert {
    condition = alltrue([
      for s in jsondecode(aws_iam_policy.run_boundary.policy).Statement :
      s.Effect == "Deny" || alltrue([for a in flatten([s.Action]) : startswith(a, "s3:") || a == "secretsmanager:GetSecretValue"])
    ])
    error_message = "A run's role is allowed nothing but the bucket and a secret."
  }

  assert {
    condition = contains(
      flatten([for s in jsondecode(aws_iam_policy.run_boundary.policy).Statement : s.Action if s.Effect == "Deny"]),
      "ec2:Terminate*",
    )
    error_message = "A run's role may not end instances, whatever else it is given."
  }

  assert {
    condition     = aws_iam_policy.run_boundary.path == "/bamboo/us-east-1/bamboo/" && aws_iam_policy.run_boundary.name == "bamboo-runs-us-east-1-bamboo"
    error_message = "The launcher names the boundary by region and stack."
  }

  assert {
    condition     = length(aws_launch_template.worker.iam_instance_profile) == 0
    error_message = "An instance that is of no run has no role."
  }

  assert {
    condition = alltrue([
      for s in jsondecode(aws_iam_policy.launcher.policy).Statement :
      s.Resource == "arn:aws:iam::*:role/bamboo/us-east-1/bamboo/*" && s.Condition.StringEquals["iam:PermissionsBoundary"] == aws_iam_policy.run_boundary.arn
      if length(setintersection(flatten([s.Action]), ["iam:CreateRole", "iam:PutRolePolicy", "iam:AttachRolePolicy"])) > 0
    ])
    error_message = "The launcher makes roles of runs only, within their bounds."
  }

  assert {
    condition = alltrue([
      for s in jsondecode(aws_iam_policy.launcher.policy).Statement :
      s.Condition.StringLike["aws:ResourceTag/bamboo:run"] == "?*" && s.Condition.StringLike["aws:ResourceTag/bamboo:stack"] == "bamboo"
      if length(setintersection(flatten([s.Action]), ["ec2:TerminateInstances", "ec2:DeleteVolume", "ec2:DeleteFleets", "ec2:CancelSpotInstanceRequests", "ec2:DeleteLaunchTemplate"])) > 0
    ])
    error_message = "The launcher ends things of a run of this stack only."
  }

  assert {
    condition     = alltrue([for text in [aws_iam_policy.launcher.policy, aws_iam_policy.run_boundary.policy] : length(replace(text, "/\\s/", "")) < 6144])
    error_message = "A managed policy is limited to 6,144 characters that are no blanks."
  }

  assert {
    condition     = length(aws_budgets_budget.month) == 0
    error_message = "An account is watched only if asked."
  }

  assert {
    condition     = length(aws_secretsmanager_secret.store) == 1 && contains(keys(aws_secretsmanager_secret.store), "admin") && !strcontains(base64decode(aws_launch_template.worker.user_data), "arn:aws:secretsmanager")
    error_message = "No login is shared by instances: a run has its own, which its launcher makes."
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

run "all_that_may_be_asked_for" {
  variables {
    launcher_cidrs      = ["203.0.113.7/32"]
    expire_runs_days    = 30
    alarm_usd_per_month = 500
    alarm_emails        = ["somebody@example.org"]
  }

  assert {
    condition = length(aws_security_group.store.ingress) == 2 && alltrue([
      for rule in aws_security_group.store.ingress : rule.from_port == 6379 && rule.to_port == 6379 && (try(length(rule.cidr_blocks), 0) == 0 || rule.cidr_blocks == tolist(["203.0.113.7/32"]))
    ])
    error_message = "A launcher's range is let in to the store's port, and to nothing else."
  }

  assert {
    condition     = alltrue([for rule in aws_security_group.workers.ingress : rule.self && try(length(rule.cidr_blocks), 0) == 0])
    error_message = "A launcher's range is not let in to workers."
  }

  assert {
    condition     = aws_s3_bucket_lifecycle_configuration.this.rule[1].filter[0].prefix == "runs/" && aws_s3_bucket_lifecycle_configuration.this.rule[1].expiration[0].days == 30
    error_message = "Runs expire, and only they."
  }

  assert {
    condition     = aws_budgets_budget.month[0].limit_amount == "500" && length(aws_budgets_budget.month[0].notification) == 2
    error_message = "The month is watched, as it is and as it is expected."
  }
}

run "an_alarm_that_nobody_hears" {
  command = plan

  variables {
    alarm_usd_per_month = 500
  }

  expect_failures = [aws_budgets_budget.month]
}

run "a_store_for_everybody" {
  command = plan

  variables {
    launcher_cidrs = ["0.0.0.0/0"]
  }

  expect_failures = [var.launcher_cidrs]
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
