"""`python -m cli.segment RUN_DIR A B`: the runtime's check of a segment of a run, with the object
stores that `cli` can open."""

import sys

from bamboo.runtime.verify_segment import main
from cli.wiring import bucket

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], bucket=bucket))
