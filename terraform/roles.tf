# Three identities, their rights in policies/. A worker reads what it needs to start and writes its
# run; it can neither start nor stop an instance, so a broken or captured worker costs nothing but
# itself. The launcher may do both, but only to what carries the tag of a run. The store says how it
# is reached, in a secret, and may do nothing else.
#
# A worker may read and write the files of every run of the stack, not of its own alone: credentials
# of an instance carry the role and the instance, not its tags, so no policy can tell whose it is.
# Who wants runs apart gives each its own stack.

data "aws_partition" "current" {}

locals {
  ec2_arn         = "arn:${data.aws_partition.current.partition}:ec2:${var.region}:*"
  run_secrets_arn = "arn:${data.aws_partition.current.partition}:secretsmanager:${var.region}:*:secret:${var.name}/runs/*"
}

resource "aws_iam_role" "worker" {
  name_prefix        = "${var.name}-worker-"
  description        = "What a Bamboo worker instance may do"
  assume_role_policy = file("${path.module}/policies/ec2.json")
}

resource "aws_iam_role_policy" "worker" {
  name = "bamboo-worker"
  role = aws_iam_role.worker.id
  policy = templatefile("${path.module}/policies/worker.json.tftpl", {
    bucket_arn = aws_s3_bucket.this.arn
    secret_arn = local.run_secrets_arn
  })
}

resource "aws_iam_instance_profile" "worker" {
  name_prefix = "${var.name}-worker-"
  role        = aws_iam_role.worker.name
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
  description = "Start, tag, watch and end the instances of Bamboo runs, and no others"
  policy = templatefile("${path.module}/policies/launcher.json.tftpl", {
    partition       = data.aws_partition.current.partition
    region          = var.region
    ec2_arn         = local.ec2_arn
    bucket_arn      = aws_s3_bucket.this.arn
    secret_arn      = aws_secretsmanager_secret.store["admin"].arn
    run_secrets_arn = local.run_secrets_arn
    worker_role_arn = aws_iam_role.worker.arn
    part_arns = concat(
      [
        aws_launch_template.worker.arn,
        aws_security_group.workers.arn,
        "${local.ec2_arn}:network-interface/*",
        "arn:${data.aws_partition.current.partition}:ec2:${var.region}::image/*",
        "arn:${data.aws_partition.current.partition}:ec2:${var.region}::snapshot/*",
      ],
      [for subnet in aws_subnet.zone : subnet.arn],
    )
  })
}
