"""The login of a run, made and taken back in a store whose administrator's login is at hand.

Rule: a password is drawn here, sent as its SHA-256, and known to whoever called alone.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import redis

from bamboo.coord.acl import USER_PREFIX, digest_word, user_name, user_rules
from bamboo.coord.address import read_address
from bamboo.coord.redis_store import connection, refused
from bamboo.errors import InputError
from bamboo.ids import RunId, run_id

DEADLINE_S = 4.0
_PASSWORD_BYTES = 32


def make_login(url: str, run: RunId) -> tuple[str, str] | None:
    """Make the run's own user, or give it a new password; (user, password). None where the login in
    `url` may make no users. Raises StoreRefused when the store cannot be used."""
    password = secrets.token_hex(_PASSWORD_BYTES)
    words = ("reset", "on", digest_word(password), *user_rules(run))
    with _admin(url, run) as admin:
        try:
            admin.execute_command("ACL", "SETUSER", user_name(run), *words)
        except redis.exceptions.NoPermissionError:
            return None
        _save(admin)
    return user_name(run), password


def remove_login(url: str, run: RunId) -> bool:
    """Take the run's own user back, with the connections that it has; whether there is none left.
    Safe to call again. False where the login in `url` may not. Raises StoreRefused."""
    with _admin(url, run) as admin:
        try:
            admin.execute_command("ACL", "DELUSER", user_name(run))
        except redis.exceptions.NoPermissionError:
            return False
        _save(admin)
    return True


def runs_with_login(url: str) -> tuple[RunId, ...]:
    """The runs that have a user of their own there; none where the login in `url` may not ask.
    Raises StoreRefused."""
    with _admin(url, RunId("check")) as admin:
        try:
            names = [str(name) for name in admin.execute_command("ACL", "USERS")]
        except redis.exceptions.NoPermissionError:
            return ()
    found = []
    for name in names:
        with suppress(InputError):  # somebody else's
            run = run_id(name.removeprefix(USER_PREFIX))
            if user_name(run) == name:
                found.append(run)
    return tuple(sorted(found))


def _save(admin: Any) -> None:
    """A server with a file of its users forgets at its next start who does not stand there."""
    with suppress(redis.exceptions.ResponseError):  # it has no such file
        admin.execute_command("ACL", "SAVE")


@contextmanager
def _admin(url: str, run: RunId) -> Iterator[Any]:
    address = read_address(url)
    admin = connection(address, connect_s=DEADLINE_S / 4, answer_s=DEADLINE_S)
    try:
        yield admin
    except redis.RedisError as error:
        raise refused(address.shown, error, run=run) from error
    finally:
        admin.close()
