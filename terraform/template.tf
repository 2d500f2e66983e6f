# What every worker instance has in common. Market, type, subnet and tags come with each request; the
# instance profile is the run's own, in a copy of this template that the launcher makes for the run: a
# fleet can name a profile in no other place. A version of this one would be taken for the newest of
# the stack, and undone.

resource "aws_launch_template" "worker" {
  name                                 = "${var.name}-worker"
  description                          = "Bamboo worker"
  image_id                             = var.image_id
  update_default_version               = true
  instance_initiated_shutdown_behavior = "terminate" # a worker that powers off stops billing
  vpc_security_group_ids               = [aws_security_group.workers.id]
  tags                                 = { "bamboo:stack" = var.name }

  # Tokens only, and no hop: a container or a fooled web client on the instance gets no credentials.
  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
    instance_metadata_tags      = "enabled" # the boot script reads the run from its tag
  }

  block_device_mappings {
    device_name = var.root_device

    ebs {
      volume_size           = var.volume_gib
      volume_type           = "gp3"
      encrypted             = true
      delete_on_termination = true
    }
  }

  user_data = base64encode(join("\n", [
    "#!/bin/bash",
    "export BAMBOO_BUCKET=${aws_s3_bucket.this.id}",
    file("${path.module}/../infra/boot.sh"),
  ]))
}
