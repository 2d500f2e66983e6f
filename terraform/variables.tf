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
