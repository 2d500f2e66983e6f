"""How often nodes are lost, what a run survives, and what zones and checkpoints cost."""
