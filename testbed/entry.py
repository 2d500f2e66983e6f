"""What the fork server calls in a forked worker: plant the faults asked for, then be a worker.

`config["fault"]`, if any, is `name` or `name:argument` of a function in `testbed.faults` or
`testbed.storage_faults`.
"""

from collections.abc import Mapping

import bamboo.runtime.node.worker
from bamboo.wiring import bucket
from testbed import faults, storage_faults

FAULTS = faults.FAULTS | storage_faults.FAULTS


def main(config: Mapping[str, str]) -> int:
    """Run a worker, faulty or honest; its exit status."""
    fault, _, argument = config.get("fault", "").partition(":")
    if fault:
        FAULTS[fault](argument)
    return bamboo.runtime.node.worker.main(config, bucket=bucket)
