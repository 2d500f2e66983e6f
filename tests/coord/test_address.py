"""A store's URL: read strictly, in the clear on this machine only, and never shown whole."""

from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bamboo.coord.address import hide_password, read_address, with_authority
from bamboo.errors import StoreRefused

SECRET = "Zq7secret"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:pw@h:1/0", "redis://:***@h:1/0"),
        ("rediss://user:p%40w@h:1/0?db=2", "rediss://user:***@h:1/0?db=2"),
        ("unix:///a/b.sock?db=0", "unix:///a/b.sock?db=0"),
        ("unix:///a@b/c.sock?db=0", "unix:///a@b/c.sock?db=0"),
        ("unix://:pw@/a/b.sock?db=0", "unix://:***@/a/b.sock?db=0"),
        ("unix:///a/b.sock?db=0&password=pw", "unix:///a/b.sock?db=0&password=***"),
        ("redis://u@h", "redis://u@h"),
        ("rediss://u:p/w@h:1/0", "rediss://u:***@h:1/0"),
        ("rediss://u:p@w/x@h:1/0", "rediss://u:***@h:1/0"),
        ("rediss://u:p?w@h:1/0?db=1", "rediss://u:***@h:1/0?db=1"),
        ("rediss://u:p#w@h:1/0", "rediss://u:***@h:1/0"),
        ("rediss://p/w@h", "rediss://***@h"),
        ("pw@h", "(a URL that cannot be read)"),
    ],
)
def test_passwords_are_hidden(url: str, shown: str) -> None:
    assert hide_password(url) == shown


@given(
    st.sampled_from(["redis", "rediss", "unix", "http", ""]),
    st.text(st.characters(codec="utf-8", exclude_characters="/"), max_size=4),
    st.text("/@:?#&=%[] \t\n", max_size=4),
    st.sampled_from(["localhost", "127.0.0.1:1", "[::1]", "h:port", "", "/a/b.sock", "h?db=x"]),
)
@example("redis", "?", "", "h?db=x")
@example("unix", "?", "=", "/a/b.sock")
@example("rediss", "/", "?=", "h:1")
def test_no_refusal_shows_a_part_of_the_password(
    scheme: str, user: str, odd: str, host: str
) -> None:
    """However badly it is escaped: what follows the user is the password, up to the last @."""
    url = f"{scheme}://{user}:{odd}{SECRET}{odd}@{host}"
    try:
        shown = read_address(url).shown
    except StoreRefused as error:
        shown = str(error)
    assert SECRET not in shown
    assert "\n" not in shown


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.8.9.1", "[::1]", "LOCALHOST"])
def test_in_the_clear_on_this_machine(host: str) -> None:
    assert read_address(f"redis://u:pw@{host}:7/3").options == {
        "host": host.strip("[]").lower(),
        "port": 7,
        "db": 3,
        "username": "u",
        "password": "pw",
    }


@pytest.mark.parametrize(
    "host", ["store.test", "10.0.0.4", "[fd00::1]", "localhost.evil.test", "127.0.0.1.nip.test"]
)
def test_in_the_clear_to_another_machine_only_when_it_is_said(host: str) -> None:
    with pytest.raises(StoreRefused, match=r"in the clear; use rediss://, or .*plaintext=allowed"):
        read_address(f"redis://u:pw@{host}:7/3")
    with pytest.raises(StoreRefused, match="in the clear"):
        read_address(f"redis://u:pw@{host}:7/3?plaintext=yes")
    assert read_address(f"redis://{host}:7/3?plaintext=allowed").options["port"] == 7


def test_the_certificate_is_checked_and_no_word_turns_that_off() -> None:
    options = read_address("rediss://u:p%2Fw@store.test").options
    assert (options["ssl"], options["ssl_cert_reqs"], options["ssl_check_hostname"]) == (
        True,
        "required",
        True,
    )
    assert (options["host"], options["port"], options["password"]) == ("store.test", 6379, "p/w")
    for word in ("ssl_cert_reqs=none", "ssl_check_hostname=False", "host=other", "plaintext=x"):
        with pytest.raises(StoreRefused, match=f"{word.partition('=')[0]!r} in its query"):
            read_address(f"rediss://u:pw@store.test?{word}")


def test_the_authority_is_a_file_that_can_be_read(tmp_path: Path) -> None:
    file = tmp_path / "a folder & more" / "ca.pem"
    with pytest.raises(StoreRefused, match=r"ssl_ca_certs = .*: No such file.*; name a file"):
        read_address(with_authority("rediss://h", str(file)))
    file.parent.mkdir()
    file.write_text("x")
    for url in ("rediss://h", "rediss://h/0?db=2", "rediss://u:p%3Fw@h"):
        assert read_address(with_authority(url, str(file))).options["ssl_ca_certs"] == str(file)
    assert with_authority("redis://h", str(file)) == "redis://h"
    assert with_authority("rediss://h", "") == "rediss://h"
    assert with_authority("rediss://h?ssl_ca_certs=/b", str(file)) == "rediss://h?ssl_ca_certs=/b"


def test_an_address_does_not_print_its_password() -> None:
    assert SECRET not in repr(read_address(f"rediss://u:{SECRET}@h"))
