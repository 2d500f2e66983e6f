"""Where the store's URL comes from: itself, a private file, or a secret of AWS.

    unix:// redis:// rediss://    the URL itself
    file:/path                    the URL is the one line of a file that its owner alone may read
    secret:NAME-or-ARN            the URL is the text of a secret in AWS Secrets Manager

Rule: what a run writes down, hands to its nodes or shows is the reference; the URL that it leads
to lives in the memory of the process that connects.
"""

import os
import stat
from pathlib import Path

from bamboo.coord.address import CA_VARIABLE, SCHEMES, with_authority
from bamboo.errors import BambooError, InputError, StoreNotReached, StoreRefused
from cloud.local.config import FILE_REFERENCE

REDIS_VARIABLE = "BAMBOO_REDIS_URL"
SECRET_REFERENCE = "secret:"
_LONGEST_BYTES = 4096


def named_store() -> str:
    """The store that the user named, as a URL or a reference; "" for an embedded one."""
    text = os.environ.get(REDIS_VARIABLE, "").strip()
    return with_authority(text, os.environ.get(CA_VARIABLE, ""))


def store_url_of(reference: str) -> str:
    """The URL of a store, with its password. Raises StoreRefused, which shows the reference."""
    if reference.startswith(FILE_REFERENCE):
        text = _in_file(Path(reference.removeprefix(FILE_REFERENCE)))
    elif reference.startswith(SECRET_REFERENCE):
        text = _in_secret(reference.removeprefix(SECRET_REFERENCE))
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
        # No link is followed and no pipe waited for: the file itself is what has an owner.
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


def _in_secret(name: str) -> str:
    from cloud.ec2.secrets import read_secret

    try:
        return read_secret(name)
    except BambooError as error:
        kind = StoreRefused if isinstance(error, InputError) else StoreNotReached
        why = " ".join(str(error).split())
        raise kind(
            f"{REDIS_VARIABLE} = {SECRET_REFERENCE + name!r}: {why}; check the secret's name, "
            "the region, and the right secretsmanager:GetSecretValue"
        ) from error
