"""The login of a run in a real server: it opens that run, its password is kept as a digest alone,
and it is gone when it is taken back."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from bamboo.coord.acl import user_name
from bamboo.coord.address import for_nodes
from bamboo.coord.logins import check_separates_runs, make_login, remove_login
from bamboo.coord.open import check_store
from bamboo.errors import StoreRefused
from bamboo.ids import RunId
from cloud.local.directory import make_directory
from testbed.store_server import AdminStore, StoreServer, start_admin_store, start_store
from tests.security.run_login import done_to
from tests.tls_store import free_port

RUN = RunId("calm-fox")


@pytest.fixture
def server() -> Iterator[StoreServer]:
    directory = make_directory()
    started = start_store(directory)
    yield started
    started.stop()


@pytest.fixture
def apart() -> Iterator[AdminStore]:
    """One that nobody enters without a login."""
    started = start_admin_store(port=free_port())
    yield started
    started.stop()


def client(url: str) -> Any:
    return redis.Redis.from_url(url, decode_responses=True)


def url_of(store: AdminStore, login: tuple[str, str]) -> str:
    return store.admin_url.replace(f"admin:{store.password}", ":".join(login))


def admin(server: StoreServer) -> "redis.Redis[str]":
    return redis.Redis(unix_socket_path=str(server.child.socket_path), decode_responses=True)


def url_as(server: StoreServer, login: tuple[str, str]) -> str:
    return server.url.replace("unix://", f"unix://{login[0]}:{login[1]}@")


def test_a_login_opens_its_run_and_no_other(server: StoreServer) -> None:
    login = make_login(server.url, RUN)
    check_store(url_as(server, login), run=RUN)
    with pytest.raises(StoreRefused, match="does not let this user"):
        check_store(url_as(server, login), run=RunId("other"))
    with admin(server) as client:
        listed = " ".join(client.execute_command("ACL", "LIST"))
    assert login[1] not in listed
    assert len(login[1]) == 64


def test_a_second_start_draws_a_new_password(server: StoreServer) -> None:
    first, second = make_login(server.url, RUN), make_login(server.url, RUN)
    check_store(url_as(server, second), run=RUN)
    with pytest.raises(StoreRefused, match="refuses the login"):
        check_store(url_as(server, first), run=RUN)


def test_a_login_that_is_taken_back_is_gone_also_the_second_time(server: StoreServer) -> None:
    login = make_login(server.url, RUN)
    assert remove_login(server.url, RUN)
    assert remove_login(server.url, RUN)
    with admin(server) as client:
        assert user_name(RUN) not in client.execute_command("ACL", "USERS")
    with pytest.raises(StoreRefused, match="refuses the login"):
        check_store(url_as(server, login), run=RUN)


def test_who_may_make_no_users_is_told_what_to_do(apart: AdminStore) -> None:
    of_run = url_of(apart, make_login(apart.admin_url, RUN))
    for call in (make_login, lambda url, _: check_separates_runs(url)):
        with pytest.raises(StoreRefused, match=r"may make no users.*name one that may") as caught:
            call(of_run, RUN)
        assert of_run not in str(caught.value)
    assert not remove_login(of_run, RUN)


def test_a_store_that_lets_anybody_in_keeps_no_runs_apart(server: StoreServer) -> None:
    with pytest.raises(
        StoreRefused, match=r"lets in everyone who reaches it.*ACL SETUSER default off"
    ):
        check_separates_runs(server.url)


def test_whether_runs_are_kept_apart_is_found_out_without_a_trace(apart: AdminStore) -> None:
    check_separates_runs(apart.admin_url)
    assert sorted(apart.users()) == ["admin", "default"]


OTHER = f"bamboo:{RunId('other')}:state"


def test_a_login_does_nothing_to_another_run_by_no_command_and_no_script(apart: AdminStore) -> None:
    """Whoever takes over an instance has this login. What it loads lies in a cache that all share,
    and a script runs with the rights of who calls it, whoever loaded it."""
    of_run = url_of(apart, make_login(apart.admin_url, RUN))
    with client(apart.admin_url) as admin, client(of_run) as mine:
        admin.hset(OTHER, "version", "1")
        admin.function_load("#!lua name=f\nredis.register_function('f', function() return 1 end)")
        deletes = admin.script_load(f"return redis.call('DEL', '{OTHER}')")
        with pytest.raises(redis.exceptions.ResponseError, match=r"(?i)permission"):
            mine.evalsha(deletes, 0)
        writes = mine.script_load("return redis.call('HSET', KEYS[1], 'version', '9')")
        assert mine.evalsha(writes, 1, f"bamboo:{RUN}:state") == 1, "its own run it may write"
        assert done_to(of_run, "other") == []
        assert admin.hgetall(OTHER) == {"version": "1"}
        assert admin.script_exists(deletes, writes) == [True, True]
        assert admin.fcall("f", 0) == 1


def test_the_login_that_all_instances_shared_did_all_of_it(apart: AdminStore) -> None:
    """The attack finds something where there is something to find."""
    rules = ("on", ">pw", "resetchannels", "~bamboo:*", "+@all", "-@admin", "-@dangerous")
    with client(apart.admin_url) as admin:
        admin.execute_command("ACL", "SETUSER", "worker", *rules)
    found = done_to(url_of(apart, ("worker", "pw")), "other")
    assert any(words.startswith("EVALSHA") for words in found)
    assert {"HGETALL", "HSET", "DEL", "FUNCTION", "SCRIPT"} <= {line.split()[0] for line in found}


def test_a_store_that_is_not_there_is_said(tmp_path: Path) -> None:
    for call in (make_login, remove_login):
        with pytest.raises(StoreRefused, match="cannot be reached"):
            call(f"unix://{tmp_path}/none.sock?db=0", RUN)


@pytest.mark.parametrize(
    ("url", "login", "given"),
    [
        ("rediss://admin:pw@host:7/0", ("u", "p"), "rediss://u:p@host:7/0"),
        ("rediss://admin:pw@host:7/0", None, "rediss://admin:pw@host:7/0"),
        ("rediss://host/0?username=a&password=b", ("u", "p"), "rediss://u:p@host/0"),
        (
            "redis://:pw@10.0.0.4:7/0?plaintext=allowed",
            ("u", "p"),
            "redis://u:p@10.0.0.4:7/0?plaintext=allowed",
        ),
    ],
)
def test_nodes_are_given_the_login_of_their_run(
    url: str, login: tuple[str, str] | None, given: str
) -> None:
    assert for_nodes(url, login=login) == (given, "")


def test_the_authority_is_named_beside_the_url(tmp_path: Path) -> None:
    authority = tmp_path / "a b.pem"
    authority.write_text("-")
    url = f"rediss://u:p@host/0?ssl_ca_certs={str(authority).replace(' ', '%20')}"
    assert for_nodes(url, login=None) == ("rediss://u:p@host/0", str(authority))


@pytest.mark.parametrize("url", ["unix:///s.sock?db=0", "rediss://h/0?ssl_keyfile=/dev/null"])
def test_what_needs_files_of_this_machine_is_no_store_for_instances(url: str) -> None:
    with pytest.raises(StoreRefused, match="files of this machine"):
        for_nodes(url, login=None)
