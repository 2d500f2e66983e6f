"""A run on disk and from outside: its folder, its documents, its progress, its state."""
