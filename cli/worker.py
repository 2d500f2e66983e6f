"""What an agent starts as a worker: the runtime's, with the object stores that `cli` can open."""

import json
import sys
from collections.abc import Mapping

from bamboo.runtime import worker
from cli.wiring import bucket


def main(config: Mapping[str, str]) -> int:
    """Run a worker to its end; its exit status."""
    return worker.main(config, bucket=bucket)


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.stdin.readline())))
