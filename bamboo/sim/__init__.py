"""Simulated worlds: spot markets as traces, and their effect on a cluster."""
