"""What a run tells about itself, as JSON lines: events and metrics, with one schema each."""
