"""Checks of a machine with one card: facts, bits, speed, kills and a profile."""
