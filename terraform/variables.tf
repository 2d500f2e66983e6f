# Everything that one account may want different from another. All have a default that works.

variable "name" {
  description = "Prefix of all names, and the launch template's name with `-worker` behind it. Two stacks in one region need two names."
  type        = string
  default     = "bamboo"

  validation {
    condition     = can(regex("^[a-z][a-z0-9-]{1,30}$", var.name))
    error_message = "The name becomes part of a bucket's name: 2 to 31 of a-z, 0-9 and '-', a letter first."
  }
}

variable "region" {
  description = "Region of everything; the same as `[cloud] region` of the job file."
  type        = string
  default     = "us-east-1"
}

variable "zones" {
  description = "Availability zones with a subnet each; `[cloud] zones` of a job file may name any of them. Zones lose their spot capacity one at a time, so give several."
  type        = list(string)
  default     = ["us-east-1a", "us-east-1b", "us-east-1c"]

  validation {
    condition     = length(var.zones) > 0 && length(var.zones) <= 8 && length(distinct(var.zones)) == length(var.zones)
    error_message = "Give 1 to 8 different zones."
  }
}

variable "network_cidr" {
  description = "Address range of the network; each zone takes the next sixteenth of it, so at least a /20 for /24 subnets."
  type        = string
  default     = "10.80.0.0/16"

  validation {
    condition     = can(cidrsubnet(var.network_cidr, 4, 0))
    error_message = "Give an IPv4 range such as 10.80.0.0/16."
  }
}

variable "image_id" {
  description = "Machine image of the workers: Linux with systemd, Python >= 3.11 with venv, the AWS command line and, for GPU types, an NVIDIA driver. Either an ami-... or resolve:ssm:PARAMETER. The default is the current Deep Learning Base image on Ubuntu 24.04."
  type        = string
  default     = "resolve:ssm:/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
}

variable "root_device" {
  description = "The image's name of its root device: /dev/sda1 on Ubuntu, /dev/xvda on Amazon Linux."
  type        = string
  default     = "/dev/sda1"
}

variable "volume_gib" {
  description = "Size of a worker's encrypted root volume in GiB; not below that of the image."
  type        = number
  default     = 120

  validation {
    condition     = var.volume_gib >= 20
    error_message = "The image and torch alone take more than that; give at least 20."
  }
}

variable "delete_runs_with_bucket" {
  description = "Whether `terraform destroy` may delete a bucket that still holds runs."
  type        = bool
  default     = false
}

variable "keep_old_versions_days" {
  description = "So long the bucket keeps, and bills, what was overwritten or deleted in it: each checkpoint that a newer one has replaced."
  type        = number
  default     = 1

  validation {
    condition     = var.keep_old_versions_days >= 1
    error_message = "Give at least 1 day."
  }
}

variable "expire_runs_days" {
  description = "Files of runs, checkpoints among them, are deleted so long after they were written; 0: never."
  type        = number
  default     = 0

  validation {
    condition     = var.expire_runs_days >= 0
    error_message = "Give 0, or a number of days."
  }
}

variable "launcher_cidrs" {
  description = "IPv4 ranges from which `bamboo launch` may reach the store from outside of the network, such as [\"203.0.113.7/32\"]; by default none."
  type        = list(string)
  default     = []

  validation {
    condition     = alltrue([for range in var.launcher_cidrs : can(cidrhost(range, 0)) && try(tonumber(split("/", range)[1]) >= 8, false)])
    error_message = "Give IPv4 ranges of at most a /8, such as 203.0.113.7/32: the store is not for everybody."
  }
}

variable "store_instance_type" {
  description = "Type of the store's instance, on demand; of the processor that store_image is for."
  type        = string
  default     = "t4g.small"
}

variable "store_image" {
  description = "Public parameter that names the image of the store's instance: Amazon Linux 2023, which brings the AWS command line and packages of Valkey and Redis."
  type        = string
  default     = "/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-arm64"
}

variable "store_port" {
  description = "Port of the store; TLS only."
  type        = number
  default     = 6379

  validation {
    condition     = var.store_port >= 1024 && var.store_port <= 65535
    error_message = "Give a port from 1024 to 65535."
  }
}

variable "alarm_usd_per_month" {
  description = "A message goes out when the account's month has cost 80 % of this, or is expected to cost more; 0: none."
  type        = number
  default     = 0

  validation {
    condition     = var.alarm_usd_per_month >= 0
    error_message = "Give 0, or dollars per month."
  }
}

variable "alarm_emails" {
  description = "Who gets that message by mail, up to 10."
  type        = list(string)
  default     = []

  validation {
    condition     = length(var.alarm_emails) <= 10 && alltrue([for mail in var.alarm_emails : can(regex("^[^@ ]+@[^@ ]+$", mail))])
    error_message = "Give up to 10 mail addresses."
  }
}

variable "alarm_topic_arns" {
  description = "SNS topics that get it."
  type        = list(string)
  default     = []
}
