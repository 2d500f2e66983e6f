"""The wheel of the Bamboo that runs here, which instances install. So nodes have the code of their
launcher, byte for byte.

Rule: it is made from the files that this process imports (a checkout or an installed package
alike), without a build, a compiler or a network. The same files give the same bytes, whose SHA-256
is part of the object's name; `infra/boot.sh` compares it. Format: PyPA, "Binary distribution
format".
"""

import base64
import hashlib
import io
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module, metadata
from pathlib import Path

from bamboo.errors import InputError
from bamboo.own_packages import BELOW, NAMES

DISTRIBUTION = "bamboo-train"
PACKAGES = ("bamboo", *NAMES)
_KINDS = (".py", ".pyi", ".typed", ".lua", ".toml", ".json", ".md", ".txt")
"""Kinds of files that packages contain; what editors and interpreters leave is not included."""
_TAG = "Wheel-Version: 1.0\nGenerator: bamboo\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_ABOUT = ("METADATA", "entry_points.txt", "licenses/LICENSE")
_FIRST_DAY = (1980, 1, 1, 0, 0, 0)
"""A fixed date, since a real one would make each wheel different."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheel:
    """A wheel as it is stored: `name` is the name of its object, `data` the file."""

    name: str
    data: bytes


def own_wheel() -> Wheel:
    """The wheel of this process's code. Raises InputError when the package was not installed, or
    its files cannot be read."""
    try:
        made = installed()
        stem = f"{DISTRIBUTION.replace('-', '_')}-{made.version}"
        files = dict(_code()) | {f"{stem}.dist-info/{k}": v for k, v in _about(made).items()}
    except (metadata.PackageNotFoundError, OSError) as error:
        raise InputError(
            f"the wheel for the instances cannot be made of what is installed here ({error}); "
            "install Bamboo again: `make setup` in a checkout"
        ) from error
    record = f"{stem}.dist-info/RECORD"
    lines = [f"{name},sha256={_safe_digest(data)},{len(data)}" for name, data in files.items()]
    files[record] = "\n".join([*lines, f"{record},,", ""]).encode()
    data = _packed(files)
    return Wheel(
        name=f"wheels/{hashlib.sha256(data).hexdigest()}/{stem}-py3-none-any.whl", data=data
    )


def _code() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        root = Path(str(import_module(package).__file__)).parent
        for path in sorted(root.rglob("*")):
            name = f"{package}/{path.relative_to(root).as_posix()}"
            if path.suffix in _KINDS and path.is_file() and not name.startswith(BELOW):
                yield placed(name), path.read_bytes()


def placed(name: str) -> str:
    """The place of a package's file in a wheel."""
    return f"{BELOW}{name}" if name.split("/", 1)[0] in NAMES else name


def installed() -> metadata.Distribution:
    """The installed distribution, and not an older one that a build may have left in a checkout on
    the path."""
    found = metadata.distributions(name=DISTRIBUTION)
    made = next((one for one in found if one.read_text("RECORD") is not None), None)
    if made is None:
        raise metadata.PackageNotFoundError(DISTRIBUTION)
    return made


def _about(made: metadata.Distribution) -> dict[str, bytes]:
    texts = {name: made.read_text(name) for name in _ABOUT}
    return {name: text.encode() for name, text in texts.items() if text} | {"WHEEL": _TAG.encode()}


def _safe_digest(data: bytes) -> str:
    digest = hashlib.sha256(data).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def _packed(files: dict[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, date_time=_FIRST_DAY)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = 0o100644 << 16
            archive.writestr(entry, data)
    return packed.getvalue()
