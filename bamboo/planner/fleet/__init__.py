"""How many nodes a run has: step times by size, and when to grow or to shrink."""
