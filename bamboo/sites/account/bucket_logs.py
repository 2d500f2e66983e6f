"""Fetches the logs of instances in an account. Every minute each instance writes the new lines of
its journal as a new file into the run's folder of the bucket (`infra/ship-logs.sh`).

    runs/<run>/logs/<instance>/<time>-<number>.log  ->  logs/<node>/<time>-<number>.log

Rule: a file that was fetched is not fetched again; a name of another form is ignored.
"""

import re
from pathlib import Path

from bamboo.ids import InstanceId, node_id
from bamboo.ports import ObjectStore

_PART = re.compile(r"logs/(i-[0-9a-f]{1,32})/(\d{8}T\d{6}-\d+(?:-[ab])?\.log)", re.ASCII)


def bring_logs(objects: ObjectStore, logs: Path) -> None:
    """Fetch new files into the run's folder of logs. Raises StorageUnavailable, OSError."""
    for name in sorted(objects.sizes("logs/")):
        found = _PART.fullmatch(name)
        if found is None:
            continue
        folder = logs / node_id(InstanceId(found[1]), 0)
        if not (folder / found[2]).exists():
            folder.mkdir(parents=True, exist_ok=True)
            objects.fetch(name, folder / found[2])
