"""The wheels that a run's code needs on an instance: kept with the run, installed into a folder of
their own.

    <run>/wheels/manifest.json    {schema_version, python, wheels: {file name: sha256}, versions}
    <run>/wheels/*.whl

Rule: only wheels of the manifest are installed, each compared with its SHA-256 before, without a
look at an index and without what they say they need: the launch has looked at that. The folder
comes last on the path, so none of it takes the place of what Bamboo brings. Installing a wheel runs
no code of it.
"""

import hashlib
import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from bamboo.errors import InputError
from bamboo.kept_weights import MANIFEST
from bamboo.named_files import open_named, sha256_of
from bamboo.new_files import write_whole
from bamboo.topology.strategy import canonical_json
from bamboo.user_code.local import count_as_installed

SCHEMA_VERSION = 1
WHEELS_FOLDER = "wheels"
"""In the folder of a run, and in `$BAMBOO_HOME`, where they lie by their digest."""
INSTALL_DEADLINE_S = 300.0
"""An instance has about as long to boot; a node that takes longer is a fault with a name."""
_MOST_BYTES = 2**24
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """What is installed."""

    python: str
    """The Python that they are for, such as `3.12`."""
    wheels: Mapping[str, str]
    """File name -> SHA-256."""
    versions: Mapping[str, str]
    """Distribution, in lower case with hyphens -> version."""

    @property
    def digest(self) -> str:
        """One digest of all."""
        return hashlib.sha256(canonical_json(asdict(self)).encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps({"schema_version": SCHEMA_VERSION, **asdict(self)}, indent=1) + "\n"


def write_manifest(folder: Path, wheels: Wheels) -> None:
    """Write it beside the wheels. Raises OSError."""
    write_whole(folder / MANIFEST, wheels.to_json().encode())


def kept_wheels(folder: Path, digest: str) -> Wheels:
    """What lies in the folder of a run. Raises InputError unless its manifest has this digest."""
    path = folder / MANIFEST
    try:
        with open_named(path, follow=False) as file:
            raw = json.loads(file.read(_MOST_BYTES))
        found = Wheels(
            python=str(raw["python"]),
            wheels={str(name): str(sha) for name, sha in raw["wheels"].items()},
            versions={str(name): str(version) for name, version in raw["versions"].items()},
        )
        if any(Path(name).name != name or not name.endswith(".whl") for name in found.wheels):
            raise ValueError("it names something that is no wheel in this folder")
    except OSError as error:
        raise _damaged(path, str(error.strerror)) from error
    except _DAMAGE as error:
        raise _damaged(path, str(error)) from error
    if found.digest != digest:
        raise _damaged(path, f"it has digest {found.digest[:12]}, not {digest[:12]}")
    return found


def check_wheels(folder: Path, digest: str) -> Wheels:
    """As `kept_wheels`, with a look at each file. Raises InputError for the first one that is
    missing or another one."""
    found = kept_wheels(folder, digest)
    for name, wanted in found.wheels.items():
        path = folder / name
        try:
            sha256 = sha256_of(path)
        except OSError as error:
            raise _damaged(path, str(error.strerror)) from error
        if sha256 != wanted:
            raise _damaged(path, "it is not what it was")
    return found


def install_wheels(folder: Path, digest: str, target: Path) -> None:
    """Install them into `target`, which is made, for this interpreter. Raises InputError when that
    cannot be done, with what pip says of it."""
    found = check_wheels(folder, digest)
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if found.python != here:
        raise InputError(
            f"the wheels of model.requirements are for Python {found.python}, and this instance "
            f"has {here}; write cloud.python = {here!r}, and launch again"
        )
    wanted = target.with_name(f"{target.name}.txt")
    lines = (f"{(folder / name).as_uri()} --hash=sha256:{x}" for name, x in found.wheels.items())
    write_whole(wanted, "\n".join([*lines, ""]).encode())
    pip = [sys.executable, "-I", "-m", "pip", "--isolated", "--disable-pip-version-check", "-q"]
    how = ["install", "--no-index", "--no-deps", "--require-hashes", "--no-compile"]
    try:
        done = subprocess.run(
            [*pip, *how, "--no-warn-conflicts", "--target", str(target), "--requirement", wanted],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=INSTALL_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise InputError(
            f"the wheels of model.requirements were not installed within {INSTALL_DEADLINE_S:g} s; "
            "take fewer, or an instance with a faster disk"
        ) from error
    if done.returncode != 0:
        raise InputError(
            f"the wheels of model.requirements cannot be installed: {said_by_pip(done.stderr)}; "
            "take other versions"
        )


def use_installed(target: Path) -> None:
    """Let imports find what was installed there, after all that is here already."""
    count_as_installed(target)
    if str(target) not in sys.path:
        sys.path.append(str(target))


def said_by_pip(text: str) -> str:
    """The errors of pip in one line, shortened."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return " ".join((errors or lines or ["it said nothing"])[-1].split())[:300]


def _damaged(path: Path, why: str) -> InputError:
    return InputError(f"{path}: {why}; the run's own copy of its wheels must be put back")
