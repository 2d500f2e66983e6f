"""Bamboo trains a pipeline of GPU stages on preemptible machines, bit for bit."""

__version__ = "0.1.0"
