"""The last watcher of a local cloud: when the host ends, however it ends, leave nothing behind.

`… cloud.local.reaper DIRECTORY` waits until its standard input ends (only the host holds the other
end), then kills every other process of its session, removes the run's temporary directory and
exits. After an orderly end it does the same and finds nothing left to kill.
"""

import os
import signal
import sys
import time
from pathlib import Path

from bamboo.new_files import open_to_append
from cloud.local.directory import remove_directory
from cloud.local.session import kill_members

KILL_DEADLINE_S = 10.0
_GRACE_S = 0.2


def log_of(directory: Path) -> Path:
    """A link to the file for the reaper's output; without it the output goes to standard error."""
    return directory / "log"


def main(argv: list[str]) -> int:
    """Wait for the end of the host, clean up; 0 when nothing is left, else 1 with a line."""
    directory = argv[0]
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    while os.read(0, 4096):
        pass  # only the end of the file means anything
    session, own = os.getsid(0), os.getpid()
    log = log_of(Path(directory)).resolve()
    # The host may still be exiting, and what it ends itself must not look like a leftover.
    time.sleep(_GRACE_S)
    left = kill_members(session, spare=own, deadline_s=KILL_DEADLINE_S)
    remove_directory(Path(directory))
    if left or Path(directory).exists():
        if log.exists():
            with open_to_append(log) as output:
                os.dup2(output.fileno(), 2)
        print(f"reaper: could not end {left} or remove {directory}", file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
