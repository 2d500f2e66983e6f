"""The login of a run in a real server: it opens that run, its password is kept as a digest alone,
and it is gone when it is taken back."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from bamboo.coord.acl import user_name
from bamboo.coord.address import for_nodes
from bamboo.coord.logins import make_login, remove_login
from bamboo.coord.open import check_store
from bamboo.errors import StoreRefused
from bamboo.ids import RunId
from cloud.local.directory import make_directory
from tests.store_server import StoreServer, start_store

RUN = RunId("calm-fox")


@pytest.fixture
def server() -> Iterator[StoreServer]:
    directory = make_directory()
    started = start_store(directory)
    yield started
    started.stop()


def admin(server: StoreServer) -> "redis.Redis[str]":
    return redis.Redis(unix_socket_path=str(server.child.socket_path), decode_responses=True)


def url_as(server: StoreServer, login: tuple[str, str]) -> str:
    return server.url.replace("unix://", f"unix://{login[0]}:{login[1]}@")


def test_a_login_opens_its_run_and_no_other(server: StoreServer) -> None:
    login = make_login(server.url, RUN)
    assert login is not None
    check_store(url_as(server, login), run=RUN)
    with pytest.raises(StoreRefused, match="does not let this user"):
        check_store(url_as(server, login), run=RunId("other"))
    with admin(server) as client:
        listed = " ".join(client.execute_command("ACL", "LIST"))
    assert login[1] not in listed
    assert len(login[1]) == 64


def test_a_second_start_draws_a_new_password(server: StoreServer) -> None:
    first, second = make_login(server.url, RUN), make_login(server.url, RUN)
    assert first is not None
    assert second is not None
    check_store(url_as(server, second), run=RUN)
    with pytest.raises(StoreRefused, match="refuses the login"):
        check_store(url_as(server, first), run=RUN)


def test_a_login_that_is_taken_back_is_gone_also_the_second_time(server: StoreServer) -> None:
    login = make_login(server.url, RUN)
    assert login is not None
    assert remove_login(server.url, RUN)
    assert remove_login(server.url, RUN)
    with admin(server) as client:
        assert user_name(RUN) not in client.execute_command("ACL", "USERS")
    with pytest.raises(StoreRefused, match="refuses the login"):
        check_store(url_as(server, login), run=RUN)


def test_who_may_make_no_users_is_no_error(server: StoreServer) -> None:
    login = make_login(server.url, RUN)
    assert login is not None
    assert make_login(url_as(server, login), RUN) is None
    assert not remove_login(url_as(server, login), RUN)


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
