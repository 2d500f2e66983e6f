"""What a run's own user may do in a shared store: the commands of a run, on the run's keys.

Rule: everything is forbidden but what stands here, and what stands here is what `redis_store` and
`lua/` use, no more: a test holds the two together. A script may do what its user may do. Good for
Redis 6.2 and later, and for Valkey.
"""

import hashlib

from bamboo.errors import InputError
from bamboo.ids import RunId, run_id

COMMANDS = (
    *("ping", "select", "evalsha", "script|load"),
    *("del", "exists", "expire", "time"),
    *("hget", "hgetall", "hmget", "hset"),
    *("xadd", "xread"),
)
"""Beside AUTH, HELLO and QUIT, which a server lets everybody say."""
USER_PREFIX = "bamboo-"
LEAST_PASSWORD = 16
"""Characters: a server keeps a password as a plain SHA-256, which only chance protects."""


def user_name(run: RunId) -> str:
    """The user that a run logs in as."""
    return f"{USER_PREFIX}{run_id(run)}"


def user_rules(run: RunId) -> tuple[str, ...]:
    """The words behind `ACL SETUSER <name>` that give a user this one run, and nothing else.

    Raises InputError for an id that is none: a pattern in it would open other runs.
    """
    keys = f"~bamboo:{run_id(run)}:*"
    return ("resetkeys", "resetchannels", "-@all", keys, *(f"+{name}" for name in COMMANDS))


def user_line(run: RunId, *, password: str) -> str:
    """The line of an ACL file that makes the run's user; it has the password's SHA-256 alone.

    Raises InputError for a password that could be guessed from that.
    """
    if len(password) < LEAST_PASSWORD:
        raise InputError(
            f"the password of run {run} has {len(password)} characters; draw one of at least "
            f"{LEAST_PASSWORD}, such as `openssl rand -hex 32` gives"
        )
    return f"user {user_name(run)} on {digest_word(password)} {' '.join(user_rules(run))}"


def digest_word(password: str) -> str:
    """How a password is told to a server: by its SHA-256."""
    return f"#{hashlib.sha256(password.encode()).hexdigest()}"
