"""The address of a store: a URL, read strictly before anything is connected.

    unix:///path.sock?db=0        a socket on this machine
    redis://127.0.0.1:6379/0      in the clear: on this machine only, unless `plaintext=allowed`
    rediss://user:password@host   TLS: the certificate and its host name are always checked

Rule: unknown options are refused, so no word in a URL can turn a check off. A password is never
shown, and neither is what could be a part of one.
"""

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

from bamboo.errors import StoreRefused

SCHEMES = ("unix", "redis", "rediss")
CA_KEY = "ssl_ca_certs"
CA_VARIABLE = "BAMBOO_REDIS_CA"
_OPEN_KEY, _OPEN_VALUE = "plaintext", "allowed"
_KEYS = ("db", "username", "password")
_TLS_KEYS = (CA_KEY, "ssl_certfile", "ssl_keyfile")
_PORT = 6379
_LONGEST = 4096
_LONGEST_SHOWN = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A store that can be connected to."""

    shown: str
    """The URL without its password, to be shown."""
    options: Mapping[str, Any] = field(repr=False)
    """The arguments of the client library, with the password."""


def read_address(url: str) -> Address:
    """Read a store's URL. Raises StoreRefused: one line, without the password, with the remedy."""
    shown = hide_password(url)
    scheme = url.partition("://")[0]
    if scheme not in SCHEMES or not url.isprintable() or len(url) > _LONGEST:
        raise StoreRefused(
            f"{shown!r} is no URL of a store; "
            "use unix:///path.sock?db=0, redis://host:port/0 or rediss://host:port/0"
        )
    try:
        parts = urlsplit(url)
        is_path = scheme == "unix" and not parts.netloc and parts.path
        if parts.fragment or ("@" in f"{parts.path}{parts.query}" and not is_path):
            raise ValueError("the login has a character that is not escaped")
        host, port = parts.hostname or "", parts.port or _PORT
        pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        words = _words(pairs, scheme)
        database = words.get("db", "" if scheme == "unix" else parts.path.strip("/"))
        if database and not (database.isascii() and database.isdigit()):
            raise ValueError("the database is no number")
    except ValueError as error:
        # Text that cannot be parsed may be a part of the password: the library's error is hidden.
        raise StoreRefused(
            f"the store URL {shown!r} cannot be used: its host, port, database or query cannot be "
            "read; correct it (in a password, write / as %2F, @ as %40, : as %3A, # as %23)"
        ) from error
    options: dict[str, Any] = {
        "db": int(database or 0),
        "username": unquote(parts.username or "") or words.get("username"),
        "password": unquote(parts.password or "") or words.get("password"),
    }
    if scheme == "unix":
        return Address(shown=shown, options=options | {"unix_socket_path": unquote(parts.path)})
    options |= {"host": unquote(host) or "localhost", "port": port}
    if scheme == "rediss":
        return Address(shown=shown, options=options | _tls(words, shown))
    if words.get(_OPEN_KEY) != _OPEN_VALUE and not _is_loopback(options["host"]):
        raise StoreRefused(
            f"the store at {shown} would be given the password and all of the run in the clear; "
            f"use rediss://, or on a private network add ?{_OPEN_KEY}={_OPEN_VALUE} to the URL"
        )
    return Address(shown=shown, options=options)


def hide_password(url: str) -> str:
    """The URL with `***` in place of the password, wherever the URL carries it."""
    scheme, separator, rest = url[:_LONGEST_SHOWN].partition("://")
    if not separator:
        return url if "@" not in url and "password" not in url else "(a URL that cannot be read)"
    rest, mark, query = _split_query(rest)
    if "@" in rest and not (scheme == "unix" and rest.startswith("/")):
        # The last @ ends the login, even if an earlier character was not escaped.
        login, host = rest.rsplit("@", 1)
        user, colon, _ = login.partition(":")
        user = user if user.replace("-", "").replace("_", "").isalnum() else ""
        rest = f"{user}{':***' if colon else ''}@{host}" if user or colon else f"***@{host}"
    if "password" in query.lower() or "@" in query:
        names = (pair.partition("=") for pair in query.split("&"))
        query = "&".join(
            f"{name}{equals}{'***' if 'password' in name.lower() or '@' in value else value}"
            for name, equals, value in names
        )
    return f"{scheme}://{rest}{mark}{query}"


def _split_query(rest: str) -> tuple[str, str, str]:
    """Split at the first ? after the login; an unescaped one before belongs to the password."""
    behind = rest.rfind("@") + 1
    if rest.startswith("/"):
        behind = 0
    at = rest.find("?", behind)
    return (rest, "", "") if at < 0 else (rest[:at], "?", rest[at + 1 :])


def for_nodes(url: str, *, login: tuple[str, str] | None) -> tuple[str, str]:
    """The URL for the nodes of a run on other machines, and the file of the certificate authority
    for the store, or "". The URL has the `login` (user, password) of the nodes if there is one, and
    names no file of this machine. Raises StoreRefused for a store that other machines cannot reach,
    or can reach only with a file of this machine."""
    shown, scheme = read_address(url).shown, url.partition("://")[0]
    rest, _, query = _split_query(url.partition("://")[2])
    words = dict(parse_qsl(query))
    if scheme == "unix" or any(name in words for name in ("ssl_certfile", "ssl_keyfile")):
        raise StoreRefused(
            f"the store at {shown} is reached with files of this machine, which instances do not "
            "have; name one by rediss://, without a certificate of the client"
        )
    authority = words.pop(CA_KEY, "")
    host = rest
    if login is not None:
        host = ":".join(login) + "@" + rest.rpartition("@")[2]
        words = {
            name: value for name, value in words.items() if name not in ("username", "password")
        }
    return f"{scheme}://{host}{'?' if words else ''}{urlencode(words)}", authority


def with_authority(url: str, ca_file: str) -> str:
    """A `rediss://` URL with the certificate authority of this file, unless it names one."""
    if not ca_file or not url.startswith("rediss://") or f"{CA_KEY}=" in url:
        return url
    path = str(Path(ca_file).absolute())
    for character in "%&#?+ ":
        path = path.replace(character, f"%{ord(character):02X}")
    return f"{url}{'&' if '?' in url.rpartition('@')[2] else '?'}{CA_KEY}={path}"


def _words(pairs: list[tuple[str, str]], scheme: str) -> dict[str, str]:
    known = {
        "unix": _KEYS,
        "redis": (*_KEYS, _OPEN_KEY),
        "rediss": (*_KEYS, *_TLS_KEYS),
    }[scheme]
    words = dict(pairs)
    if len(words) != len(pairs):
        raise ValueError("a word of the query comes twice")
    for name in words:
        if name not in known:
            raise StoreRefused(
                f"the store URL has {name!r} in its query, which is not known for {scheme}://; "
                f"take it out (known are {', '.join(known)})"
            )
    return words


def _tls(words: Mapping[str, str], shown: str) -> dict[str, Any]:
    files = {name: words[name] for name in _TLS_KEYS if name in words}
    for name, path in files.items():
        try:
            with Path(path).open("rb"):
                pass
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            raise StoreRefused(
                f"the store at {shown} is to be reached with {name} = {path!r}, which cannot be "
                f"read: {why}; name a file that can ({CA_VARIABLE} for the authority)"
            ) from error
    return {"ssl": True, "ssl_cert_reqs": "required", "ssl_check_hostname": True, **files}


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower().rstrip(".") == "localhost"
