"""Checks outside of a run: preflight, profile, reference, verify."""
