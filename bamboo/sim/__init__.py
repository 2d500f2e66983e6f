"""Worlds that are not there: spot markets as traces, and what they do to a cluster."""
