"""`python -m bamboo.runs.segment RUN_DIR A B`: the runtime's check of a segment of a run, with the
run's checkpoints, in a directory or a bucket."""

import sys
from pathlib import Path

from bamboo import wiring
from bamboo.config.tree import JobConfig
from bamboo.ids import RunId
from bamboo.ports import ObjectStore
from bamboo.runs.run_folder import RunFolder
from bamboo.runtime.check import verify_segment


def checkpoints(run: Path, job: JobConfig) -> tuple[str, ObjectStore]:
    """The checkpoints of the run in a folder: their address, and the object store."""
    folder = RunFolder(id=RunId(run.resolve().name), path=run)
    return wiring.checkpoint_url(folder, job), wiring.checkpoints_of(folder, job)


def main(arguments: list[str]) -> int:
    """The command; see the top of the file."""
    return verify_segment.main(arguments, checkpoints=checkpoints)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
