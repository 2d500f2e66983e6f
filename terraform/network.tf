# One network, one public subnet in each zone. Public because a worker fetches torch once and a NAT
# gateway costs more than the addresses; nothing from outside gets in (see the security group).

resource "aws_vpc" "this" {
  cidr_block           = var.network_cidr
  enable_dns_hostnames = true
  enable_dns_support   = true
  tags                 = { Name = var.name }
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.name }
}

resource "aws_subnet" "zone" {
  for_each = { for index, zone in var.zones : zone => index }

  vpc_id                  = aws_vpc.this.id
  availability_zone       = each.key
  cidr_block              = cidrsubnet(var.network_cidr, 4, each.value)
  map_public_ip_on_launch = true
  tags                    = { Name = "${var.name}-${each.key}", "bamboo:stack" = var.name }
}

resource "aws_route_table" "public" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.name }
}

resource "aws_route" "internet" {
  route_table_id         = aws_route_table.public.id
  destination_cidr_block = "0.0.0.0/0"
  gateway_id             = aws_internet_gateway.this.id
}

resource "aws_route_table_association" "zone" {
  for_each = aws_subnet.zone

  subnet_id      = each.value.id
  route_table_id = aws_route_table.public.id
}

# Free of charge, and keeps the bucket's traffic off the internet.
resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.public.id]
  tags              = { Name = "${var.name}-s3" }
}

# Workers talk among themselves, on ports the system chooses; nobody else reaches them, and there is
# no SSH. The transport asks for the run's keys on top of that. The rules stand inside the group on
# purpose: one that somebody adds by hand is taken away by the next apply. A launcher may start
# instances in what carries the tag of its stack: this group, its subnets, its launch templates.
resource "aws_security_group" "workers" {
  name        = "${var.name}-workers"
  description = "Bamboo workers: each other, and outwards"
  vpc_id      = aws_vpc.this.id

  ingress {
    description = "Transport among workers"
    protocol    = "tcp"
    from_port   = 1024
    to_port     = 65535
    self        = true
  }

  egress {
    description = "Packages, bucket, store"
    protocol    = "-1"
    from_port   = 0
    to_port     = 0
    cidr_blocks = ["0.0.0.0/0"]
  }

  tags = { Name = "${var.name}-workers", "bamboo:stack" = var.name }
}

# Whatever is started in this network without naming a group may talk to nobody.
resource "aws_default_security_group" "closed" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = "${var.name}-closed" }
}
