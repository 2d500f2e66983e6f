"""What costs money in an account without being a member of a live run. Pure.

Rule: tags say which run a thing belongs to and until when it is meant to exist; the caller says
which nodes are alive. A run that is unknown here may live on another machine. It is named all the
same, with that reason, and nothing is ended from here.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from bamboo.ids import InstanceId, RunId
from cloud.provider import Held, HeldKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known here of the runs."""

    live: Mapping[RunId, Collection[InstanceId] | None]
    """Live run -> its members; None: they cannot be listed, so all of it may be alive."""
    ended: Collection[RunId]
    checks: Mapping[RunId, bool] = field(default_factory=dict)
    """Check of a run's bits on a rented machine -> whether its launcher lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Orphan:
    """Something held, and why it is not wanted."""

    held: Held
    why: str


def orphans(
    held: Sequence[Held], known: Known, *, now_s: float, join_s: float
) -> tuple[Orphan, ...]:
    """The entries of `held` that cost money, or may start what does, and belong to no live run, in
    the given order. An instance of a live run has `join_s` from its start on to become a member."""
    found = []
    for one in held:
        costs = one.kind in (HeldKind.INSTANCE, HeldKind.VOLUME) or one.standing
        why = _why(one, known, now_s=now_s, join_s=join_s) if costs else ""
        if why:
            found.append(Orphan(held=one, why=why))
    return tuple(found)


def _why(one: Held, known: Known, *, now_s: float, join_s: float) -> str:
    # A volume goes with its instance, and only the instance's tag is prolonged.
    if not one.attached_to and one.expires_at_s is not None and one.expires_at_s < now_s:
        return f"expired {(now_s - one.expires_at_s) / 3600:.1f} h ago"
    if one.run in known.ended:
        return "its run has ended"
    if one.run in known.checks:
        return "" if known.checks[one.run] else "nobody waits for this check any more"
    if one.run not in known.live:
        return "no run of this name is known here; it may live on another machine"
    young = one.since_s is not None and now_s - one.since_s < join_s
    members = known.live[one.run]
    if one.kind is HeldKind.INSTANCE and members is not None:
        return "" if one.id in members or young else "it is no member of its run"
    if one.kind is HeldKind.VOLUME and not one.attached_to and not young:
        return "it is attached to nothing"
    return ""
