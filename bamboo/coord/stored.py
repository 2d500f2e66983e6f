"""Parses the contents of a run's keys, whatever any client has written there.

Rule: no content of a store raises anything but a named error. Damaged informative content counts as
empty, so that its reader skips it; damaged content that decides is refused.
"""

import math
from collections.abc import Mapping

from bamboo.errors import UnreadableRecord
from bamboo.ports import Entry, Lease

_SHOWN = 80


def lease_of(text: str) -> Lease:
    """The lease from "seconds.micros payload". Another form counts as a lease that never grew, so
    its node is gone unless it beats again."""
    stamp, _, payload = text.partition(" ")
    try:
        beaten_at_s = float(stamp)
    except ValueError:
        beaten_at_s = math.nan
    if not math.isfinite(beaten_at_s):
        return Lease(payload="", beaten_at_s=0.0)
    return Lease(payload=payload, beaten_at_s=beaten_at_s)


def body_of(fields: Mapping[str, str]) -> str:
    """The text of a stream's entry; "", which is no record, if it has another form."""
    return str(fields.get("body", ""))


def entry_of(at: str, body: str) -> Entry | None:
    """The decision in the log's entry with the id `at`; None if it is not one."""
    version, _, more = at.partition("-")
    return Entry(version=int(version), body=body) if more == "1" and body else None


def version_of(text: object) -> int:
    """The number of a run's newest decision. Raises UnreadableRecord."""
    try:
        return int(str(text))
    except ValueError as error:
        raise UnreadableRecord(
            f"the version of the run in its store is {str(text)[:_SHOWN]!r}, no whole number; who "
            "else writes to this store has damaged it"
        ) from error
