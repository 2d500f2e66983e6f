"""Spot markets as traces: recorded, generated, made longer or wider, and their prices."""
