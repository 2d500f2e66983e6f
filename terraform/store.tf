# The store of runs: Redis (or Valkey) on one small on-demand instance, by TLS and with passwords.
#
# No secret passes through here: the instance makes certificate and password at its first boot
# (infra/store.sh) and puts them into a secret that only the launcher reads: each run has a login of
# its own, which its launcher makes. Neither the state of Terraform nor any user data ever holds one.

resource "aws_secretsmanager_secret" "store" {
  for_each = {
    admin = "The store of ${var.name} for its launcher: url, certificate"
  }

  name_prefix             = "${var.name}-store-${each.key}-"
  description             = each.value
  recovery_window_in_days = 0 # nothing is lost with it: a new store makes new ones
}

data "aws_ssm_parameter" "store_image" {
  name = var.store_image
}

resource "aws_security_group" "store" {
  name        = "${var.name}-store"
  description = "Bamboo store: from workers, and from the launchers that are named"
  vpc_id      = aws_vpc.this.id

  ingress {
    description     = "Workers"
    protocol        = "tcp"
    from_port       = var.store_port
    to_port         = var.store_port
    security_groups = [aws_security_group.workers.id]
  }

  dynamic "ingress" {
    for_each = length(var.launcher_cidrs) > 0 ? [var.launcher_cidrs] : []

    content {
      description = "Launchers"
      protocol    = "tcp"
      from_port   = var.store_port
      to_port     = var.store_port
      cidr_blocks = ingress.value
    }
  }

  egress {
    description = "Packages, secrets"
    protocol    = "tcp"
    from_port   = 443
    to_port     = 443
    cidr_blocks = ["0.0.0.0/0"]
  }

  tags = { Name = "${var.name}-store" }
}

resource "aws_instance" "store" {
  ami                         = data.aws_ssm_parameter.store_image.insecure_value
  instance_type               = var.store_instance_type
  subnet_id                   = aws_subnet.zone[var.zones[0]].id
  vpc_security_group_ids      = [aws_security_group.store.id]
  iam_instance_profile        = aws_iam_instance_profile.store.name
  user_data_replace_on_change = true

  user_data = join("\n", [
    "#!/bin/bash",
    "export BAMBOO_ADMIN_SECRET=${aws_secretsmanager_secret.store["admin"].arn}",
    "export BAMBOO_STORE_PORT=${var.store_port}",
    file("${path.module}/../infra/store.sh"),
  ])

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  root_block_device {
    volume_size           = 20
    volume_type           = "gp3"
    encrypted             = true
    delete_on_termination = true
  }

  tags        = { Name = "${var.name}-store", "bamboo:stack" = var.name }
  volume_tags = { Name = "${var.name}-store", "bamboo:stack" = var.name }

  # A newer image must not replace a store under its runs.
  lifecycle {
    ignore_changes = [ami]
  }

  # Its first boot writes the secret, and fetches packages.
  depends_on = [aws_iam_role_policy.store, aws_route_table_association.zone]
}
