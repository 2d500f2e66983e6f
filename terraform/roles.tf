# Three identities, their rights in policies/. The launcher starts and ends instances, but only what
# carries the tags of a run and of this stack. The store says how it is reached, in a secret, and may
# do nothing else.
#
# A run's instances have a role of the run's own: their credentials carry the role and none of their
# tags, so one role for all runs could not tell whose they are. The launcher makes it, below a path
# of this stack and within the bounds here, with the rights that cloud/ec2/run_role.py writes: what
# starts the run, to read; its own files; its own secret. It can neither start nor stop an instance,
# so a broken or captured worker costs its run, and no other.

data "aws_partition" "current" {}

locals {
  arn     = "arn:${data.aws_partition.current.partition}"
  ec2_arn = "${local.arn}:ec2:${var.region}:*"
  # As cloud/ec2/run_role.py names them. IAM knows no regions, and stacks of one name may stand in
  # several.
  run_path        = "/bamboo/${var.region}/${var.name}/"
  run_secrets_arn = "${local.arn}:secretsmanager:${var.region}:*:secret:${var.name}/runs/*"
}

# What the role of any run may do at most, whatever its own policy says.
resource "aws_iam_policy" "run_boundary" {
  name        = "bamboo-runs-${var.region}-${var.name}"
  path        = local.run_path
  description = "What the role of a Bamboo run may do at most"
  policy = templatefile("${path.module}/policies/run.json.tftpl", {
    bucket_arn      = aws_s3_bucket.this.arn
    run_secrets_arn = local.run_secrets_arn
  })
}

resource "aws_iam_role" "store" {
  name_prefix        = "${var.name}-store-"
  description        = "What the instance of Bamboo's store may do"
  assume_role_policy = file("${path.module}/policies/ec2.json")
}

resource "aws_iam_role_policy" "store" {
  name = "bamboo-store"
  role = aws_iam_role.store.id
  policy = templatefile("${path.module}/policies/store.json.tftpl", {
    admin_secret_arn = aws_secretsmanager_secret.store["admin"].arn
  })
}

resource "aws_iam_instance_profile" "store" {
  name_prefix = "${var.name}-store-"
  role        = aws_iam_role.store.name
}

# Attach it to whoever runs `bamboo launch`: a user, a role of a group, or a small instance's role.
resource "aws_iam_policy" "launcher" {
  name_prefix = "${var.name}-launcher-"
  description = "Start, tag, watch and end the instances of the Bamboo runs of one stack, and no others"
  policy = templatefile("${path.module}/policies/launcher.json.tftpl", {
    partition       = data.aws_partition.current.partition
    region          = var.region
    ec2_arn         = local.ec2_arn
    bucket_arn      = aws_s3_bucket.this.arn
    secret_arn      = aws_secretsmanager_secret.store["admin"].arn
    stack           = var.name
    run_secrets_arn = local.run_secrets_arn

    run_boundary_arn = aws_iam_policy.run_boundary.arn
    run_roles_arn    = "${local.arn}:iam::*:role${local.run_path}*"
    run_profiles_arn = "${local.arn}:iam::*:instance-profile${local.run_path}*"
  })
}
