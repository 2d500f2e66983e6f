"""The login of a run, made and removed in a store for which an administrator's login is available.

Rule: a password is drawn here, sent as its SHA-256, and known only to the caller.
"""

import secrets
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any

import redis

from bamboo.coord.acl import USER_PREFIX, digest_word, user_name, user_rules
from bamboo.coord.address import Address, read_address
from bamboo.coord.redis_store import connection, refused
from bamboo.errors import InputError, StoreRefused
from bamboo.ids import RunId, run_id

DEADLINE_S = 4.0
_PASSWORD_BYTES = 32
_NO_RULE = "no-rule"


def make_login(url: str, run: RunId) -> tuple[str, str]:
    """Create the run's own user, or give it a new password; returns (user, password). Raises
    StoreRefused if the store cannot be used, or the login in `url` may not create users."""
    password = secrets.token_hex(_PASSWORD_BYTES)
    words = ("reset", "on", digest_word(password), *user_rules(run))
    with _admin(url, run) as admin:
        try:
            admin.execute_command("ACL", "SETUSER", user_name(run), *words)
        except redis.exceptions.NoPermissionError as error:
            raise _makes_none(url) from error
        _save(admin)
    return user_name(run), password


def check_separates_runs(url: str) -> None:
    """Raises StoreRefused unless the login in `url` may create the logins of runs, and every client
    needs one. Creates none."""
    address = read_address(url)
    nobody = {**address.options, "username": None, "password": None}
    connected = _connected(replace(address, options=nobody), RunId("check"))
    with connected as stranger, suppress(redis.RedisError):
        stranger.ping()
        raise StoreRefused(
            f"the store at {address.shown} lets in everyone who reaches it, without a login, so an "
            "instance would reach all runs; switch that off (ACL SETUSER default off), or name "
            "another store"
        )
    with _admin(url, RunId("check")) as admin:
        try:
            # A server checks the rights first, and an invalid rule creates no user.
            admin.execute_command("ACL", "SETUSER", user_name(RunId("check")), _NO_RULE)
        except redis.exceptions.NoPermissionError as error:
            raise _makes_none(url) from error
        except redis.exceptions.ResponseError:
            return


def _makes_none(url: str) -> StoreRefused:
    return StoreRefused(
        f"the login at {read_address(url).shown} may make no users, and each run in an account has "
        "a login of its own, that no instance reaches another run; name one that may (ACL SETUSER, "
        "ACL DELUSER), such as that of the stack, cloud.store_secret"
    )


def remove_login(url: str, run: RunId) -> bool:
    """Remove the run's own user and its connections; returns whether none is left. Safe to call
    again. False if the login in `url` may not do this. Raises StoreRefused."""
    with _admin(url, run) as admin:
        try:
            admin.execute_command("ACL", "DELUSER", user_name(run))
        except redis.exceptions.NoPermissionError:
            return False
        _save(admin)
    return True


def runs_with_login(url: str) -> tuple[RunId, ...]:
    """The runs that have a user of their own in the store; none if the login in `url` may not ask.
    Raises StoreRefused."""
    with _admin(url, RunId("check")) as admin:
        try:
            names = [str(name) for name in admin.execute_command("ACL", "USERS")]
        except redis.exceptions.NoPermissionError:
            return ()
    found = []
    for name in names:
        with suppress(InputError):  # a user that is not a run's
            run = run_id(name.removeprefix(USER_PREFIX))
            if user_name(run) == name:
                found.append(run)
    return tuple(sorted(found))


def _save(admin: Any) -> None:
    """At its next start, a server with a file of users forgets those that are not in the file."""
    with suppress(redis.exceptions.ResponseError):  # it has no such file
        admin.execute_command("ACL", "SAVE")


def _admin(url: str, run: RunId) -> AbstractContextManager[Any]:
    return _connected(read_address(url), run)


@contextmanager
def _connected(address: Address, run: RunId) -> Iterator[Any]:
    admin = connection(address, connect_s=DEADLINE_S / 4, answer_s=DEADLINE_S)
    try:
        yield admin
    except redis.RedisError as error:
        raise refused(address.shown, error, run=run) from error
    finally:
        admin.close()
