"""Measurements that run in a fresh process each, with torch; nothing else of the check has torch.

Rule: a measurement takes a mapping of what is asked and returns a mapping, both plain JSON. It
knows no limits.
"""
