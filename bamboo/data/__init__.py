"""Data addressed by (step, microbatch): the same sample on every machine. Reading the text needs no
torch, so nothing is imported here."""
