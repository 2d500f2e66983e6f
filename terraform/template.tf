# What every worker instance has in common. Market, type, subnet and tags come with each request.

resource "aws_launch_template" "worker" {
  name                                 = "${var.name}-worker"
  description                          = "Bamboo worker"
  image_id                             = var.image_id
  update_default_version               = true
  instance_initiated_shutdown_behavior = "terminate" # a worker that powers off stops billing
  vpc_security_group_ids               = [aws_security_group.workers.id]

  iam_instance_profile {
    arn = aws_iam_instance_profile.worker.arn
  }

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
