"""One instance that was rented to check the bits of a run: it trains it again and stores a verdict.

    verdict.json    {body: the result of `bamboo verify`}, or {error, exit_code}
    progress.json   [step, steps], while it trains

Rule: it has no store, and no part in the run that it checks. It reads what its launcher has stored
for it, and writes the two files above.
"""

import json
import logging
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Protocol

from bamboo.checkpoint.open import OpenObjects
from bamboo.checkpoint.run_files import fetch_checked
from bamboo.errors import BambooError, StorageUnavailable
from bamboo.new_files import write_whole
from bamboo.ports import ObjectStore

VERDICT, PROGRESS = "verdict.json", "progress.json"
TELL_EVERY_S = 20.0
_TRIES, _RETRY_S = 30, 10.0
"""A verdict that took hours outlasts a bucket that is away for some minutes."""

log = logging.getLogger("bamboo.agent")


class Verify(Protocol):
    """Checks the run in a folder, as `bamboo.wiring.run_verify` does."""

    def __call__(self, folder: Path, *, told: "_Telling") -> Mapping[str, Any]: ...


def check_run(
    *,
    begins: ObjectStore,
    results: ObjectStore,
    verify: Verify,
    heard_file: str = "",
    bucket: OpenObjects | None = None,
) -> int:
    """Check the run that `begins` has the files of, and store the verdict in `results`; the exit
    status. `bucket` opens an `s3://` address. `heard_file` is touched at each sign of
    progress, for the dead-man switch. Raises StorageUnavailable when the verdict cannot be
    stored."""
    with TemporaryDirectory(prefix="bamboo-check-") as name:
        folder = Path(name)
        try:
            fetch_checked(begins, folder, bucket=bucket)
            told = _Telling(results, folder / PROGRESS, heard_file)
            said: dict[str, Any] = {"body": dict(verify(folder, told=told))}
        except BambooError as error:
            said = {"error": str(error), "exit_code": error.exit_code}
    log.info("the verdict: %s", json.dumps(said))
    for left in reversed(range(_TRIES)):
        try:
            results.put_new(VERDICT, json.dumps(said).encode())
            break
        except StorageUnavailable:
            if not left:
                raise
            time.sleep(_RETRY_S)
    return 0 if "body" in said else int(said["exit_code"])


class _Telling:
    """Stores how far the check is, now and then."""

    def __init__(self, results: ObjectStore, path: Path, heard_file: str) -> None:
        self._results = results
        self._path = path
        self._heard_file = heard_file
        self._tell_at_s = 0.0

    def __call__(self, step: int, steps: int) -> None:
        if self._heard_file:
            Path(self._heard_file).touch()
        if time.monotonic() < self._tell_at_s:
            return
        self._tell_at_s = time.monotonic() + TELL_EVERY_S
        # The next sign says more; no sign, and no full disk, is worth the verdict.
        with suppress(StorageUnavailable, OSError):
            write_whole(self._path, json.dumps([step, steps]).encode())
            self._results.put_file(PROGRESS, self._path)
