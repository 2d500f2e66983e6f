"""The logs of instances in an account: each brings its journal's new lines to the run's folder of
the bucket every minute (`infra/ship-logs.sh`), as a file of its own; here they are fetched.

    runs/<run>/logs/<instance>/<time>-<number>.log  ->  logs/<node>/<time>-<number>.log

Rule: what was fetched is not fetched again; a name that is none of these is passed over.
"""

import re
from pathlib import Path

from bamboo.ids import InstanceId, node_id
from bamboo.ports import ObjectStore

_PART = re.compile(r"logs/(i-[0-9a-f]{1,32})/(\d{8}T\d{6}-\d+(?:-[ab])?\.log)", re.ASCII)


def bring_logs(objects: ObjectStore, logs: Path) -> None:
    """Fetch what is new into the folder of a run's logs. Raises StorageUnavailable, OSError."""
    for name in sorted(objects.sizes("logs/")):
        found = _PART.fullmatch(name)
        if found is None:
            continue
        folder = logs / node_id(InstanceId(found[1]), 0)
        if not (folder / found[2]).exists():
            folder.mkdir(parents=True, exist_ok=True)
            objects.fetch(name, folder / found[2])
