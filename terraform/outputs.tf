# What `bamboo init` writes down for `bamboo launch`, and infra/README.md needs to know of the stack.

output "stack" {
  description = "Name of the stack, for `[cloud] stack`."
  value       = var.name
}

output "launch_template" {
  description = "Name of the launch template of worker instances."
  value       = aws_launch_template.worker.name
}

output "subnets" {
  description = "Subnet of each zone."
  value       = { for zone, subnet in aws_subnet.zone : zone => subnet.id }
}

output "security_group" {
  description = "Security group of the workers."
  value       = aws_security_group.workers.id
}

output "launcher_policy" {
  description = "ARN of the policy for whoever runs `bamboo launch`."
  value       = aws_iam_policy.launcher.arn
}

output "bucket" {
  description = "Bucket of wheels and runs."
  value       = aws_s3_bucket.this.id
}

output "region" {
  description = "Region of the stack, for `[cloud] region`."
  value       = var.region
}

output "store_secret" {
  description = "ARN of the secret that says how a launcher reaches the store; it is read when needed and written down nowhere."
  value       = aws_secretsmanager_secret.store["admin"].arn
}

output "store_address" {
  description = "Address of the store in the network; from outside, for launcher_cidrs, it is in the secret."
  value       = "${aws_instance.store.private_ip}:${var.store_port}"
}
