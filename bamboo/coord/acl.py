"""The rights of a run's own user in a shared store: the commands of a run, on the run's keys.

Rule: everything that is not listed here is forbidden. The list is exactly what `redis_store` and
`lua/` use, and a test compares the two. A script may do what its user may do. This works with Redis
6.2 and later, and with Valkey.
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
"""In addition to AUTH, HELLO and QUIT, which a server allows everybody."""
USER_PREFIX = "bamboo-"
LEAST_PASSWORD = 16
"""Characters. A server keeps a password as a plain SHA-256, which only randomness protects."""


def user_name(run: RunId) -> str:
    """The user name with which a run logs in."""
    return f"{USER_PREFIX}{run_id(run)}"


def user_rules(run: RunId) -> tuple[str, ...]:
    """The words after `ACL SETUSER <name>` that give a user access to this run and nothing else.

    Raises InputError for an invalid id, because a pattern in it would open other runs.
    """
    keys = f"~bamboo:{run_id(run)}:*"
    return ("resetkeys", "resetchannels", "-@all", keys, *(f"+{name}" for name in COMMANDS))


def user_line(run: RunId, *, password: str) -> str:
    """The line of an ACL file that defines the run's user; of the password it has the SHA-256 only.

    Raises InputError for a password that could be guessed from that.
    """
    if len(password) < LEAST_PASSWORD:
        raise InputError(
            f"the password of run {run} has {len(password)} characters; draw one of at least "
            f"{LEAST_PASSWORD}, such as `openssl rand -hex 32` gives"
        )
    return f"user {user_name(run)} on {digest_word(password)} {' '.join(user_rules(run))}"


def digest_word(password: str) -> str:
    """The form in which a server receives a password: its SHA-256."""
    return f"#{hashlib.sha256(password.encode()).hexdigest()}"
