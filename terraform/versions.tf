# Which Terraform and which provider; the account and its credentials come from the surroundings.

terraform {
  required_version = ">= 1.9"

  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.80, < 7.0"
    }
  }
}

# No default_tags: on a launch template they make every later plan show a change that is none.
provider "aws" {
  region      = var.region
  max_retries = 5
}
