"""Data addressed by (step, microbatch): the same sample on every machine."""

from bamboo.data.dataset import Dataset, load_data

__all__ = ["Dataset", "load_data"]
