"""What lies under a run's keys, as values: whatever has been written there, and by whomever.

Rule: nothing that stands in a store raises anything but an error by name. What only tells is taken
for what tells nothing, so that its reader passes it over; what decides is refused.
"""

import math
from collections.abc import Mapping

from bamboo.errors import UnreadableRecord
from bamboo.ports import Entry, Lease

_SHOWN = 80


def lease_of(text: str) -> Lease:
    """The lease that was written as "seconds.micros payload"; in another form it is one that never
    grew, so its node is gone unless it beats again."""
    stamp, _, payload = text.partition(" ")
    try:
        beaten_at_s = float(stamp)
    except ValueError:
        beaten_at_s = math.nan
    if not math.isfinite(beaten_at_s):
        return Lease(payload="", beaten_at_s=0.0)
    return Lease(payload=payload, beaten_at_s=beaten_at_s)


def body_of(fields: Mapping[str, str]) -> str:
    """What a stream's entry says; "", which is no record, where it has another form."""
    return str(fields.get("body", ""))


def entry_of(at: str, body: str) -> Entry | None:
    """The decision that a log's entry of the id `at` holds; None: it is none."""
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
