"""A fork server of a peer: it has everything imported, so that a new process starts at once.

    python -m benchmarks.peers.forks MODULE

It reads one JSON configuration per line and answers with the process id of a fork that runs
`MODULE.main(configuration)`. Rule: no thread is started here; its forks are killed when its
standard input ends.
"""

import importlib
import json
import os
import signal
import sys


def main() -> int:
    entry = importlib.import_module(sys.argv[1]).main
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    children: list[int] = []
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            _child(entry, line)
        children.append(pid)
        print(pid, flush=True)
    for pid in children:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    return 0


def _child(entry: object, line: str) -> None:
    config = json.loads(line)
    os.setpgid(0, 0)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(config["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)
    for number in (1, 2):
        os.dup2(log, number)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    assert callable(entry)
    try:
        status = entry(config)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(status or 0)


if __name__ == "__main__":
    sys.exit(main())
