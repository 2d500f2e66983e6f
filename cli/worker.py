"""What an agent starts as a worker: the runtime's, with the object stores that `cli` can open."""

from collections.abc import Mapping

from bamboo.runtime import worker
from cli.wiring import bucket


def main(config: Mapping[str, str]) -> int:
    """Run a worker to its end; its exit status."""
    return worker.main(config, bucket=bucket)
