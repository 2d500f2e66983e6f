"""Where the store's URL comes from: itself, a private file, or a secret of AWS.

    unix:// redis:// rediss://    the URL itself
    file:/path                    the URL is the only line of a file that only its owner can read
    secret:NAME-or-ARN            the URL is the text of a secret in AWS Secrets Manager, or is
                                  there beside its certificate, as infra/store.sh writes it:
                                  {"url": "...", "ca_pem": "...", "public_host": "..."}

Rule: a run writes down, gives to its nodes and shows only the reference. The URL is only in the
memory of the process that connects.
"""

import hashlib
import json
import os
import socket
import stat
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bamboo.config.account import account_file
from bamboo.config.tree import JobConfig
from bamboo.coord.address import CA_VARIABLE, SCHEMES, with_authority
from bamboo.errors import BambooError, InputError, StoreNotReached, StoreRefused
from bamboo.new_files import write_whole
from cloud.local.config import FILE_REFERENCE

REDIS_VARIABLE = "BAMBOO_REDIS_URL"
SECRET_REFERENCE = "secret:"
_LONGEST_BYTES = 4096
_LONGEST_SECRET_BYTES = 65536
_REACHED_WITHIN_S = 2.0
_CERTIFICATE = "-----BEGIN CERTIFICATE-----"


def named_store() -> str:
    """The store that the user named, as a URL or a reference; "" for an embedded one."""
    text = os.environ.get(REDIS_VARIABLE, "").strip()
    return with_authority(text, os.environ.get(CA_VARIABLE, ""))


def store_of_job(job: JobConfig) -> str:
    """The store that the user named for a job, as a URL or a reference: in the environment, or
    otherwise in an account by `cloud.store_secret`. "" for an embedded one."""
    secret = job.cloud.store_secret if job.cloud.provider == "ec2" else ""
    return named_store() or (SECRET_REFERENCE + secret if secret else "")


def store_url_of(reference: str, *, from_here: bool = True) -> str:
    """The URL of a store, with its password. With `from_here` it has the address that is reachable
    from this machine, otherwise the one for instances of its network. Raises StoreRefused, which
    shows the reference."""
    if reference.startswith(FILE_REFERENCE):
        text = _in_file(Path(reference.removeprefix(FILE_REFERENCE)))
    elif reference.startswith(SECRET_REFERENCE):
        text = _in_secret(reference.removeprefix(SECRET_REFERENCE))
        if text.lstrip().startswith("{"):
            text = _of_stack(text, reference, from_here=from_here)
    else:
        return reference
    url = text.strip()
    if url.partition("://")[0] not in SCHEMES:
        raise StoreRefused(
            f"{REDIS_VARIABLE} = {reference!r} leads to no URL of a store; put one there, such as "
            "rediss://user:password@host:6379/0"
        )
    return with_authority(url, os.environ.get(CA_VARIABLE, ""))


def _in_file(path: Path) -> str:
    try:
        # No link is followed and no pipe waited for: the owner that counts is that of the file
        # itself.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise StoreRefused(f"{_named(path)} is no file; name one with the store's URL")
            if found.st_mode & 0o077:
                raise StoreRefused(
                    f"{_named(path)} may be read by others than its owner; "
                    f"change that (chmod 600), and its password"
                )
            data = file.read(_LONGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise StoreNotReached(
            f"{_named(path)} cannot be read: {why}; name a file with the store's URL (no link)"
        ) from error
    if len(data) > _LONGEST_BYTES:
        raise StoreRefused(
            f"{_named(path)} has more than {_LONGEST_BYTES} bytes; it is to hold one URL"
        )
    return data.decode(errors="replace")


def _named(path: Path) -> str:
    return f"{REDIS_VARIABLE} = {FILE_REFERENCE + str(path)!r}: the file"


EMPTY_SECRET = "AWSCURRENT"
"""The name that Secrets Manager gives as missing for a secret that exists and was never written."""


def _in_secret(name: str) -> str:
    from cloud.ec2.secrets import read_secret

    try:
        return read_secret(name)
    except BambooError as error:
        kind = StoreRefused if isinstance(error, InputError) else StoreNotReached
        why = " ".join(str(error).split())
        if EMPTY_SECRET in why:
            raise StoreNotReached(
                f"the secret {name} is empty still: the store of a stack writes it at the end of "
                "its first boot; ask again in some minutes"
            ) from error
        raise kind(
            f"{REDIS_VARIABLE} = {SECRET_REFERENCE + name!r}: {why}; check the secret's name, "
            "the region, and the right secretsmanager:GetSecretValue"
        ) from error


def _of_stack(text: str, reference: str, *, from_here: bool) -> str:
    """The URL of a store of `terraform/`, with its certificate, and with its public address where
    its own is out of reach. A text of another form gives no URL."""
    try:
        said: Any = json.loads(text) if len(text) <= _LONGEST_SECRET_BYTES else None
    except (ValueError, RecursionError):
        said = None
    if not isinstance(said, dict) or not isinstance(said.get("url"), str):
        return ""
    url = _within_reach(said["url"], said.get("public_host")) if from_here else said["url"]
    authority = said.get("ca_pem")
    if not isinstance(authority, str) or not authority.startswith(_CERTIFICATE):
        return url
    return with_authority(url, str(_kept(authority, reference)))


def _within_reach(url: str, public_host: object) -> str:
    try:
        host, port = urlsplit(url).hostname or "", urlsplit(url).port or 6379
    except ValueError:
        return url  # the code that parses the address says why
    if not isinstance(public_host, str) or not public_host or _answers(host, port):
        return url
    login, at, _ = url.rpartition("@")
    _, slash, path = url[len(login) + len(at) :].partition("/")
    return f"{login}{at}{public_host}:{port}{slash}{path}"


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=_REACHED_WITHIN_S):
            return True
    except OSError:
        return False


def _kept(authority: str, reference: str) -> Path:
    """A certificate, which is not secret, in a file of the user's own, next to the account file.
    Its name contains its digest, so another store's certificate has another name."""
    data = authority.encode(errors="replace")
    path = account_file().parent / f"store-{hashlib.sha256(data).hexdigest()[:16]}.pem"
    try:
        if path.exists() and path.read_bytes() == data:
            return path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(path, data)
    except OSError as error:
        raise StoreNotReached(
            f"{REDIS_VARIABLE} = {reference!r}: its certificate cannot be kept in {path}: "
            f"{error.strerror}; name another folder by BAMBOO_CONFIG"
        ) from error
    return path
