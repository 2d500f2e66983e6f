"""Shows a run in the experiment trackers of its user."""
