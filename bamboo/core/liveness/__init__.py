"""Who counts as gone, what an outage of the store changes, and how long a wait may last."""
