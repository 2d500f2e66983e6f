"""What an agent starts as a worker: the runtime's worker, with the stores that the wiring opens."""

import json
import sys
from collections.abc import Mapping

from bamboo.runtime.node import worker
from bamboo.wiring import bucket
from bamboo.wiring.store_reference import store_url_of


def run(config: Mapping[str, str]) -> int:
    """Run a worker to its end; its exit status."""
    url = store_url_of(config["store_url"])
    return worker.main({**config, "store_url": url}, bucket=bucket)


def main(_: list[str]) -> int:
    """The command: the configuration comes on standard input."""
    return run(json.loads(sys.stdin.readline()))
