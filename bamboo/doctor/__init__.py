"""What `bamboo doctor` checks, of this machine, of an account, and of what was left behind."""
