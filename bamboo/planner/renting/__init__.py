"""What to rent for a job: every way, the best first, and what is not advised."""
