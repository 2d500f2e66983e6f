# The bucket holds what a starting instance fetches (boot/, wheels/) and what runs leave (runs/).

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

resource "aws_s3_bucket_policy" "encrypted_transport_only" {
  bucket = aws_s3_bucket.this.id
  policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Sid       = "EncryptedTransportOnly"
      Effect    = "Deny"
      Principal = "*"
      Action    = "s3:*"
      Resource  = [aws_s3_bucket.this.arn, "${aws_s3_bucket.this.arn}/*"]
      Condition = { Bool = { "aws:SecureTransport" = "false" } }
    }]
  })

  # Else the two calls race, and the service refuses one of them.
  depends_on = [aws_s3_bucket_public_access_block.this]
}

# The wheel itself goes to wheels/ by hand (infra/README.md); these change with the stack only.
resource "aws_s3_object" "boot" {
  for_each = {
    "bamboo-agent.service" = "${path.module}/../infra/bamboo-agent.service"
    "constraints.txt"      = "${path.module}/../constraints.txt"
  }

  bucket      = aws_s3_bucket.this.id
  key         = "boot/${each.key}"
  source      = each.value
  source_hash = filemd5(each.value)
}
