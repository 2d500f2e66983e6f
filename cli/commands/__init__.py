"""One file per command; each has a `command`, which is imported only when it is called."""
