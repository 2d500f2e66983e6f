"""Data addressed by (step, microbatch): the same sample on every machine. Where the text comes from
needs no torch, so nothing is imported here."""
