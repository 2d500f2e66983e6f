"""Schedules as values: instructions, per-stage programs, the picker, the symbolic dry run."""
