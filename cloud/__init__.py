"""The cloud room: what starts, watches and ends instances, on EC2 and on this machine."""
