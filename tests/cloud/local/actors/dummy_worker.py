"""A worker without torch: says what it was given, then waits for its order in the file `order` of
the run's directory: `vanish INSTANCE` or `leave INSTANCE`."""

import json
import os
import signal
import sys
import threading
from pathlib import Path


def main(config) -> int:
    said = {"worker": os.getpid(), "group": os.getpgid(0), "config": dict(config)}
    said["environment"] = dict(os.environ)
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    order = Path(config["run_dir"]) / "order"
    stop = threading.Event()
    while not stop.wait(0.02):
        word = order.read_text() if order.exists() else ""
        if word == f"vanish {config['instance']}":
            os.killpg(os.getpgrp(), signal.SIGKILL)
        if word == f"leave {config['instance']}":
            return 5
    return 0
