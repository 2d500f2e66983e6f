"""Who gets which slot: at first, in a new layout, and what a running grid should come to."""
