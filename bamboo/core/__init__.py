"""Decides the membership of a run: a pure state machine over a log of events."""
