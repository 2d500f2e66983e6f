"""The command line: the only place that sees both the training system and the cloud."""
