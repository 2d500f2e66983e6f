"""What a run reports of itself, as JSON lines: events and metrics, with one schema each."""
