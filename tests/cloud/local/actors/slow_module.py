"""A module that takes for ever to import."""

import signal

signal.pause()
