"""Entries for the fork server's tests."""

import json
import os
import signal
import sys
import threading

IMPORTED_BY = os.getpid()


def exits(config) -> int:
    return int(config["status"])


def leaves(config) -> None:
    sys.exit(int(config["status"]))


def leaves_with_words(_config) -> None:
    sys.exit("no way")


def returns_nothing(_config) -> None:
    """As its name says."""


def breaks(config) -> None:
    raise ValueError(config["word"])


def tells(config) -> None:
    fact = {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "imported_by": IMPORTED_BY,
        "threads": threading.active_count(),
        "files": sorted(os.listdir("/proc/self/fd")),
        "config": dict(config),
    }
    sys.stdout.write(json.dumps(fact) + "\n")


def answers(_config) -> int:
    """What it was asked, and who it began: another of its group that outlives it."""
    other = os.fork()
    if not other:
        signal.pause()
    sys.stdout.write(json.dumps({"asked": sys.stdin.read(), "other": other}) + "\n")
    sys.stderr.write("said\n")
    return 3


def waits(_config) -> None:
    signal.pause()
