"""What a node holds and moves: transfers, prefetch, checkpoints, restores."""
