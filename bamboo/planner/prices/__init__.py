"""Prices and quotas: the catalogue, what a cloud answers to it, and costs besides instances."""
