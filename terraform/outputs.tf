# What `bamboo launch` and infra/README.md need to know of the stack.

output "launch_template" {
  description = "Name of the launch template of worker instances."
  value       = aws_launch_template.worker.name
}

output "subnets" {
  description = "Subnet of each zone."
  value       = { for zone, subnet in aws_subnet.zone : zone => subnet.id }
}

output "security_group" {
  description = "Security group of the workers; let it into the store's, if the store is in this network."
  value       = aws_security_group.workers.id
}

output "instance_profile" {
  description = "Name of the workers' instance profile."
  value       = aws_iam_instance_profile.worker.name
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
