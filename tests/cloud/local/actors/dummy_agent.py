"""An agent without the run behind it: starts a worker, prints what it sees, leaves with it."""

import json
import os
import select
import sys
from pathlib import Path

from cloud.ec2.imds import Imds
from cloud.local.fork_starter import ForkStarter


def say(fact: dict[str, object]) -> None:
    sys.stdout.write(json.dumps(fact) + "\n")
    sys.stdout.flush()


def main() -> int:
    imds = Imds.from_environment()
    identity = imds.identity()
    starter = ForkStarter(
        socket_path=Path(os.environ["BAMBOO_ZYGOTE"]),
        entry=os.environ["BAMBOO_WORKER_ENTRY"],
        log=Path(os.environ["BAMBOO_LOG"]),
    )
    worker = starter.start(
        config={
            "instance": identity.instance,
            "zone": identity.zone,
            "run_dir": os.environ["BAMBOO_RUN_DIR"],
            "scratch_dir": os.environ["BAMBOO_SCRATCH_DIR"],
        }
    )
    keys = sorted(name for name in os.environ if name.startswith("AWS_"))
    say({"agent": os.getpid(), "sees": worker.pid, "aws": keys})
    noticed = False
    while worker.poll() is None:
        notice = imds.notice()
        if notice is not None and not noticed:
            noticed = True
            say({"notice_at_s": notice.at_s})
        readable, _, _ = select.select([0], [], [], 0.05)
        if readable and not os.read(0, 1):
            worker.kill()  # as a real agent does
            return 9
    return worker.poll() or 0


if __name__ == "__main__":
    sys.exit(main())
