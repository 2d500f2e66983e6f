# Two identities. A worker reads what it needs to start and writes its run; it can neither start nor
# stop an instance, so a broken or captured worker costs nothing but itself. The launcher may do
# both, but only to instances that carry the tag of a run.

data "aws_partition" "current" {}

locals {
  run_tag = "bamboo:run"
  ec2_arn = "arn:${data.aws_partition.current.partition}:ec2:${var.region}:*"
}

resource "aws_iam_role" "worker" {
  name_prefix = "${var.name}-worker-"
  description = "What a Bamboo worker instance may do"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Effect    = "Allow"
      Principal = { Service = "ec2.amazonaws.com" }
      Action    = "sts:AssumeRole"
    }]
  })
}

resource "aws_iam_role_policy" "worker" {
  name = "bamboo-worker"
  role = aws_iam_role.worker.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid      = "FetchWhatStartsIt"
        Effect   = "Allow"
        Action   = "s3:GetObject"
        Resource = ["${aws_s3_bucket.this.arn}/boot/*", "${aws_s3_bucket.this.arn}/wheels/*"]
      },
      {
        Sid      = "ReadAndWriteRuns"
        Effect   = "Allow"
        Action   = ["s3:GetObject", "s3:PutObject"]
        Resource = "${aws_s3_bucket.this.arn}/runs/*"
      },
      {
        Sid      = "ListTheBucket"
        Effect   = "Allow"
        Action   = "s3:ListBucket"
        Resource = aws_s3_bucket.this.arn
      },
      {
        # Nothing above allows these. The denial holds even if someone adds a wide policy later.
        Sid    = "NeverTouchInstances"
        Effect = "Deny"
        Action = [
          "ec2:CreateFleet",
          "ec2:ModifyInstanceAttribute",
          "ec2:RequestSpotFleet",
          "ec2:RequestSpotInstances",
          "ec2:RunInstances",
          "ec2:StartInstances",
          "ec2:StopInstances",
          "ec2:TerminateInstances",
        ]
        Resource = "*"
      },
    ]
  })
}

resource "aws_iam_instance_profile" "worker" {
  name_prefix = "${var.name}-worker-"
  role        = aws_iam_role.worker.name
}

# Attach it to whoever runs `bamboo launch`: a user, a role of a group, or a small instance's role.
resource "aws_iam_policy" "launcher" {
  name_prefix = "${var.name}-launcher-"
  description = "Start, tag, watch and end the instances of Bamboo runs, and no others"
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [
      {
        Sid    = "Look"
        Effect = "Allow"
        Action = [
          "ec2:DescribeAvailabilityZones",
          "ec2:DescribeImages",
          "ec2:DescribeInstanceStatus",
          "ec2:DescribeInstanceTypeOfferings",
          "ec2:DescribeInstanceTypes",
          "ec2:DescribeInstances",
          "ec2:DescribeLaunchTemplateVersions",
          "ec2:DescribeLaunchTemplates",
          "ec2:DescribeSecurityGroups",
          "ec2:DescribeSpotInstanceRequests",
          "ec2:DescribeSpotPriceHistory",
          "ec2:DescribeSubnets",
          "ec2:GetSpotPlacementScores",
          "servicequotas:GetAWSDefaultServiceQuota",
          "servicequotas:GetServiceQuota",
          "servicequotas:ListServiceQuotas",
          "ssm:GetParameters",
        ]
        Resource = "*"
      },
      {
        Sid      = "StartInstancesOfARun"
        Effect   = "Allow"
        Action   = ["ec2:RunInstances", "ec2:CreateFleet"]
        Resource = "${local.ec2_arn}:instance/*"
        Condition = {
          StringLike   = { "aws:RequestTag/${local.run_tag}" = "?*" }
          StringEquals = { "ec2:MetadataHttpTokens" = "required" }
        }
      },
      {
        Sid    = "FromPartsOfThisStack"
        Effect = "Allow"
        Action = ["ec2:RunInstances", "ec2:CreateFleet"]
        Resource = concat(
          [
            aws_launch_template.worker.arn,
            aws_security_group.workers.arn,
            "${local.ec2_arn}:fleet/*",
            "${local.ec2_arn}:network-interface/*",
            "${local.ec2_arn}:spot-instances-request/*",
            "${local.ec2_arn}:volume/*",
            "arn:${data.aws_partition.current.partition}:ec2:${var.region}::image/*",
          ],
          [for subnet in aws_subnet.zone : subnet.arn],
        )
      },
      {
        Sid    = "TagAtBirthOnly"
        Effect = "Allow"
        Action = "ec2:CreateTags"
        Resource = [
          "${local.ec2_arn}:fleet/*",
          "${local.ec2_arn}:instance/*",
          "${local.ec2_arn}:network-interface/*",
          "${local.ec2_arn}:spot-instances-request/*",
          "${local.ec2_arn}:volume/*",
        ]
        Condition = { StringEquals = { "ec2:CreateAction" = ["RunInstances", "CreateFleet"] } }
      },
      {
        Sid       = "EndInstancesOfARun"
        Effect    = "Allow"
        Action    = "ec2:TerminateInstances"
        Resource  = "${local.ec2_arn}:instance/*"
        Condition = { StringLike = { "aws:ResourceTag/${local.run_tag}" = "?*" } }
      },
      {
        Sid       = "GiveTheWorkerRole"
        Effect    = "Allow"
        Action    = "iam:PassRole"
        Resource  = aws_iam_role.worker.arn
        Condition = { StringEquals = { "iam:PassedToService" = "ec2.amazonaws.com" } }
      },
      {
        # The first spot request of an account makes this role.
        Sid       = "FirstSpotRequest"
        Effect    = "Allow"
        Action    = "iam:CreateServiceLinkedRole"
        Resource  = "arn:${data.aws_partition.current.partition}:iam::*:role/aws-service-role/spot.amazonaws.com/*"
        Condition = { StringEquals = { "iam:AWSServiceName" = "spot.amazonaws.com" } }
      },
      {
        Sid      = "FilesOfRuns"
        Effect   = "Allow"
        Action   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket"]
        Resource = [aws_s3_bucket.this.arn, "${aws_s3_bucket.this.arn}/*"]
      },
    ]
  })
}
