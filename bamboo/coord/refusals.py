"""The refusals of a store that answers: the meaning of each, and the remedy.

Rule: each refusal has one entry here. At a start it refuses the start by this name. During a run it
is an outage like any other, and members wait for its end (`errors.StoreRefuses`).
"""

import re
from dataclasses import dataclass

import redis
from redis import exceptions

from bamboo.coord.acl import user_rules
from bamboo.ids import RunId

Errors = tuple[type[redis.RedisError], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """One kind of refusal."""

    name: str
    """The word with which a server begins it, or its usual name."""
    what: str
    """What the store is or does, as text after "the store at …"."""
    remedy: str
    passes: bool = True
    """Whether it may end by itself, so that a new member tries again."""


REFUSALS: tuple[tuple[Refusal, Errors, str], ...] = (
    (
        Refusal(
            name="READONLY",
            what="is a replica and takes nothing that is written",
            remedy="name its primary, or make it one (REPLICAOF NO ONE)",
        ),
        (exceptions.ReadOnlyError,),
        "READONLY|read only replica",
    ),
    (
        Refusal(
            name="OOM",
            what="has no memory left for what a run writes",
            remedy="raise its maxmemory, or delete what nobody needs there",
        ),
        (),
        r"\bOOM\b|used memory > 'maxmemory'",
    ),
    (
        Refusal(
            name="LOADING",
            what="is reading its data and not ready yet",
            remedy="wait until it has read them",
        ),
        (exceptions.BusyLoadingError,),
        r"\bLOADING\b|loading the dataset",
    ),
    (
        Refusal(
            name="BUSY",
            what="is busy with somebody's script",
            remedy="end that (SCRIPT KILL), and see who runs scripts for so long",
        ),
        (),
        r"\bBUSY\b|is busy running a",
    ),
    (
        Refusal(
            name="MISCONF",
            what="cannot write its data to its disk and takes nothing",
            remedy="see its log, and make room on its disk",
        ),
        (),
        r"\bMISCONF\b|Errors writing to the AOF",
    ),
    (
        Refusal(
            name="MAXCLIENTS",
            what="has as many clients as it may have",
            remedy="raise its maxclients, or end clients that nobody needs",
        ),
        (),
        "max number of clients",
    ),
    (
        # Before the next one, because the library's error for this one is a subclass of that.
        Refusal(
            name="MASTERDOWN",
            what="is a replica that does not reach its primary",
            remedy="name the primary, or make it one (REPLICAOF NO ONE)",
        ),
        (exceptions.MasterDownError,),
        "MASTERDOWN|replica-serve-stale-data",
    ),
    (
        Refusal(
            name="CLUSTER",
            what="is a cluster, and a run needs one server for all its keys",
            remedy="name a server, or a group of replicas, with cluster mode disabled",
            passes=False,
        ),
        (
            exceptions.MovedError,
            exceptions.AskError,
            exceptions.ClusterDownError,
            exceptions.ClusterCrossSlotError,
        ),
        r"\bMOVED\b|\bASK\b|CLUSTERDOWN|CROSSSLOT|ash slot",
    ),
    (
        Refusal(
            name="NOREPLICAS",
            what="has fewer replicas than it wants and takes nothing",
            remedy="start its replicas again, or lower its min-replicas-to-write",
        ),
        (),
        "NOREPLICAS|Not enough good replicas",
    ),
    (
        Refusal(
            name="NOPERM",
            what="does not let this user do what a run needs",
            remedy="allow its user this: {rules}",
            passes=False,
        ),
        (exceptions.NoPermissionError,),
        "NOPERM|no permissions to|ACL failure|can't run this command|can't access at least one",
    ),
    (
        Refusal(
            name="DENIED",
            what="has no password and answers its own machine alone",
            remedy="give it a login, and name that in the URL (BAMBOO_REDIS_URL)",
            passes=False,
        ),
        (),
        r"\bDENIED\b|protected mode",
    ),
    (
        # Some releases of the client report a missing login as an error of HELLO.
        Refusal(
            name="WRONGPASS",
            what="refuses the login",
            remedy="check user and password in the URL (BAMBOO_REDIS_URL)",
            passes=False,
        ),
        (exceptions.AuthenticationError,),
        "WRONGPASS|NOAUTH|HELLO",
    ),
)
"""Each with the client library's errors and with words in their text. A refusal that a script met
arrives as a text, with or without the server's word. The first match counts."""


def refusal_of(error: Exception, *, run: RunId) -> Refusal | None:
    """The refusal of an error; None if it is not a known one, or the store did not answer."""
    said = str(error)
    for refusal, errors, text in REFUSALS:
        if isinstance(error, errors) or re.search(text, said):
            rules = " ".join(user_rules(run))
            return Refusal(
                name=refusal.name,
                what=refusal.what,
                remedy=refusal.remedy.format(rules=rules),
                passes=refusal.passes,
            )
    return None
