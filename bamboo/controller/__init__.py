"""Leads a run from its start to its receipt, and everything that a launcher decides on the way."""
