"""The simulator that was published with the paper: its models, constants and random markets."""
