"""One file per verb; each has a `command`, imported only when that verb is called."""
