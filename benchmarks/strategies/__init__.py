"""Strategies of synchronisation, on paper."""
