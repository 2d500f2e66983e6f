"""`python -m cli.segment RUN_DIR A B`: the runtime's check of a segment of a run, with the object
stores that `cli` can open."""

import sys

from bamboo.runtime import verify_segment
from cli.wiring import bucket


def main(arguments: list[str]) -> int:
    """The command; see the top of the file."""
    return verify_segment.main(arguments, bucket=bucket)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
