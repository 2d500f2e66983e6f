# The bucket holds what a starting instance fetches (boot/, wheels/, starts/), tokens that runs share
# (data/), and what runs leave (runs/).

resource "aws_s3_bucket" "this" {
  bucket_prefix = "${var.name}-"
  force_destroy = var.delete_runs_with_bucket
  tags          = { Name = var.name }
}

resource "aws_s3_bucket_public_access_block" "this" {
  bucket                  = aws_s3_bucket.this.id
  block_public_acls       = true
  block_public_policy     = true
  ignore_public_acls      = true
  restrict_public_buckets = true
}

resource "aws_s3_bucket_server_side_encryption_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    apply_server_side_encryption_by_default {
      sse_algorithm = "AES256"
    }
  }
}

resource "aws_s3_bucket_versioning" "this" {
  bucket = aws_s3_bucket.this.id

  versioning_configuration {
    status = "Enabled"
  }
}

resource "aws_s3_bucket_lifecycle_configuration" "this" {
  bucket = aws_s3_bucket.this.id

  rule {
    id     = "what-was-replaced"
    status = "Enabled"
    filter {}

    noncurrent_version_expiration {
      noncurrent_days = var.keep_old_versions_days
    }

    abort_incomplete_multipart_upload {
      days_after_initiation = 3
    }
  }

  dynamic "rule" {
    for_each = var.expire_runs_days > 0 ? [var.expire_runs_days] : []

    content {
      id     = "runs"
      status = "Enabled"

      filter {
        prefix = "runs/"
      }

      expiration {
        days = rule.value
      }
    }
  }

  # Old versions are there only once versioning is.
  depends_on = [aws_s3_bucket_versioning.this]
}

resource "aws_s3_bucket_policy" "encrypted_transport_only" {
  bucket = aws_s3_bucket.this.id
  policy = templatefile("${path.module}/policies/bucket.json.tftpl", {
    bucket_arn = aws_s3_bucket.this.arn
  })

  # Else the two calls race, and the service refuses one of them.
  depends_on = [aws_s3_bucket_public_access_block.this]
}

# The wheel goes to wheels/ with the first launch that has it; these change with the stack only.
resource "aws_s3_object" "boot" {
  for_each = merge(
    { "constraints.txt" = "${path.module}/../constraints.txt" },
    { "agent_names.txt" = "${path.module}/../cloud/ec2/agent_names.txt" },
    {
      for name in concat(tolist(fileset("${path.module}/../infra", "bamboo-*.{service,timer}")), ["deadman.sh", "ship-logs.sh"]) :
      name => "${path.module}/../infra/${name}"
    },
  )

  bucket      = aws_s3_bucket.this.id
  key         = "boot/${each.key}"
  source      = each.value
  source_hash = filemd5(each.value)

  # One that is there before versions are could never be wholly deleted, nor the bucket after it.
  depends_on = [aws_s3_bucket_versioning.this]
}

# A launch reads here what the role of a run may do at most, before anything costs money.
resource "aws_s3_object" "bounds" {
  bucket  = aws_s3_bucket.this.id
  key     = "boot/bounds.json"
  content = aws_iam_policy.run_boundary.policy

  # As for the others.
  depends_on = [aws_s3_bucket_versioning.this]
}
