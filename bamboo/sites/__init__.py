"""Where a run lives, this machine or an account, with its fleet."""
