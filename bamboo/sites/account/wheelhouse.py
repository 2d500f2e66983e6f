"""The wheels of a job's own code, for the instances that install them: found, fetched and compared
before anything is paid for.

Rule: an instance has what this release of Bamboo brings, and the wheels of `model.requirements`.
Whatever the code imports is one of the two, in the version with which the model was looked at here.
What a wheel needs is pinned in the file, or has the version that is installed here. So an instance
asks no index, and no resolver runs on it.
"""

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from email.parser import HeaderParser
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

from packaging.markers import default_environment
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from bamboo.config.home import home
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.named_files import sha256_of
from bamboo.sites.account.wheel import DISTRIBUTION, installed
from bamboo.user_code.wheels import WHEELS_FOLDER, Wheels, said_by_pip, write_manifest

KEY = "model.requirements"
DOWNLOAD_DEADLINE_S = 900.0
NEWEST_GLIBC = 34
"""Of 2.x: what the images of an account have at least (Amazon Linux 2023 has 2.34)."""
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NO_WHEEL = re.compile(r"No matching distribution found for (\S+)")
_ARM = re.compile(r"[a-z]+\d+[a-z]*g[a-z]*(-[a-z0-9]+)?")
"""The family of an instance type with a processor of ARM, such as g5g and c7gn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A distribution in one version."""

    name: str
    """In lower case with hyphens."""
    version: str
    hashes: tuple[str, ...] = ()
    """SHA-256 that its wheel may have; (): any."""

    def __str__(self) -> str:
        return f"{self.name}=={self.version}"


def wheels_for(job: JobConfig, *, pins: Mapping[str, str]) -> Wheels | None:
    """The wheels that the instances of a job install, which are then in `$BAMBOO_HOME`; None: it
    names none. `pins` are the versions that instances get of what Bamboo brings, as far as they are
    known. Raises InputError for a requirement that is no pin, or has no wheel for them."""
    if not job.model.requirements:
        return None
    return _found(job, _Instances(job, brought_versions(job, pins)))


def check_imports(
    job: JobConfig,
    requires: Mapping[str, str],
    wheels: Wheels | None,
    *,
    pins: Mapping[str, str],
) -> None:
    """Raises InputError for the first distribution of those that a job's code imports that no
    instance would have as it is here, where the model was looked at. `requires`: name -> version
    here."""
    brought = brought_versions(job, pins)
    pinned = {} if wheels is None else wheels.versions
    for distribution, version in sorted(requires.items()):
        name = canonicalize_name(distribution)
        there = brought.get(name) or pinned.get(name)
        if there is None:
            raise _refuse(
                job,
                f"pins no {name}, which the code imports and no instance has",
                f"write {name}=={version} into such a file",
            )
        if _plain(there) != _plain(version):
            whose = "install with Bamboo" if name in brought else "get by it"
            raise _refuse(
                job,
                f"leads to {name} {there}, which instances {whose}, and the model was looked at "
                f"with {version}",
                f"install {name}=={_plain(there)} here, and launch again",
            )


def extra_of(job: JobConfig) -> str:
    """The extra of Bamboo that instances install; "": none."""
    return "hf" if job.model.is_hf else ""


def kept_at(digest: str) -> Path:
    """The folder of the wheels with this digest, once they were found."""
    return home() / WHEELS_FOLDER / digest


def brought_versions(job: JobConfig, pins: Mapping[str, str]) -> dict[str, str]:
    """Distribution -> version, of all that the instances of a job install with Bamboo."""
    found: dict[str, str] = {}
    todo = [(DISTRIBUTION, extra_of(job))]
    while todo:
        name, extra = todo.pop()
        try:
            ours = name == DISTRIBUTION
            needs = (installed().requires if ours else metadata.requires(name)) or ()
        except metadata.PackageNotFoundError:
            continue  # not of this platform
        for text in needs:
            need = Requirement(text)
            one = canonicalize_name(need.name)
            if one not in found and _applies(need, _here(), extra):
                found[one] = ""
                todo.append((one, ""))
    for name in found:
        try:
            found[name] = pins.get(name) or metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return {name: version for name, version in found.items() if version}


# ---------------------------------------------------------------- the file


def pins_in(job: JobConfig, text: str, environment: Mapping[str, str]) -> list[Pin]:
    """The pins of a file of requirements that apply in this environment. Raises InputError for a
    line that is no pin."""
    found = []
    whole = text.replace("\\\n", " ")
    for number, line in enumerate(whole.splitlines(), 1):
        bare = re.sub(r"(^|\s)#.*", "", line).strip()
        if not bare:
            continue
        hashes = tuple(_HASH.findall(bare))
        bare = _HASH.sub("", bare).strip()
        try:
            need = Requirement(bare)
        except InvalidRequirement:
            need = None
        only = list(need.specifier) if need is not None and not need.url else []
        pinned = need is not None and not need.extras and len(only) == 1
        if need is None or not pinned or only[0].operator != "==" or "*" in only[0].version:
            raise _refuse(
                job, f"line {number}, {bare!r}, is no pin", "write NAME==VERSION in each line"
            )
        if _applies(need, environment):
            name = canonicalize_name(need.name)
            found.append(Pin(name=name, version=only[0].version, hashes=hashes))
    return found


# ---------------------------------------------------------------- the instances


class _Instances:
    """What pip is told of the instances of a job, and what they have already."""

    def __init__(self, job: JobConfig, brought: Mapping[str, str]) -> None:
        self.brought = brought
        self.python = job.cloud.python
        arms = {bool(_ARM.fullmatch(kind.partition(".")[0])) for kind in job.cloud.instance_types}
        if len(arms) > 1:
            raise _refuse(
                job,
                "cannot be met for instances with two kinds of processors",
                "take cloud.instance_types of one kind",
            )
        self._machine = "aarch64" if arms == {True} else "x86_64"

    @property
    def environment(self) -> Mapping[str, str]:
        """What markers are compared with."""
        return {
            **_here(),
            "python_version": self.python,
            "python_full_version": f"{self.python}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "platform_machine": self._machine,
            "platform_system": "Linux",
            "sys_platform": "linux",
            "os_name": "posix",
        }

    def words(self) -> str:
        return f"Python {self.python} on Linux {self._machine}"

    def options(self) -> Iterator[str]:
        """Of pip: wheels for these instances, and no others."""
        yield from ("--only-binary", ":all:", "--python-version", self.python)
        yield from ("--implementation", "cp")
        for abi in (f"cp{self.python.replace('.', '')}", "abi3", "none"):
            yield from ("--abi", abi)
        older = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
        newer = (f"manylinux_2_{minor}" for minor in range(NEWEST_GLIBC, 4, -1))
        for kind in (*newer, *older):
            yield from ("--platform", f"{kind}_{self._machine}")


# ---------------------------------------------------------------- the wheels


def _found(job: JobConfig, instances: _Instances) -> Wheels:
    """The wheels of the file, and of what they need, as they lie in `$BAMBOO_HOME` then."""
    path = job.named(job.model.requirements)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _refuse(job, f"cannot be read ({error})", "correct the path") from error
    todo = {
        pin.name: pin
        for pin in pins_in(job, text, instances.environment)
        if not _is_brought(job, pin, instances.brought)
    }
    versions: dict[str, str] = {}
    try:
        kept = home() / WHEELS_FOLDER
        kept.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=kept, prefix=".aside-", ignore_cleanup_errors=True) as name:
            aside = Path(name) / "found"
            aside.mkdir()
            while todo:
                _download(job, instances, list(todo.values()), aside)
                versions |= {pin.name: pin.version for pin in todo.values()}
                todo = _needed(job, instances, aside, versions)
            return _stored(aside, instances.python, versions)
    except OSError as error:
        raise InputError(
            f"{home() / WHEELS_FOLDER}: {error}; make room there, or set BAMBOO_HOME to another "
            "folder"
        ) from error


def _is_brought(job: JobConfig, pin: Pin, brought: Mapping[str, str]) -> bool:
    there = brought.get(pin.name)
    if there is not None and _plain(there) != _plain(pin.version):
        raise _refuse(
            job,
            f"pins {pin}, and instances have {there} of it, which Bamboo brings",
            "leave that line out",
        )
    return there is not None


def _download(job: JobConfig, instances: _Instances, pins: list[Pin], to: Path) -> None:
    own = job.model.wheelhouse
    where = ("--no-index", "--find-links", str(job.named(own).absolute())) if own else ()
    pip = [sys.executable, "-m", "pip", *(("--isolated",) if own else ()), "-q"]
    command = [*pip, "--disable-pip-version-check", "download", "--no-deps", *where]
    try:
        done = subprocess.run(
            [*command, *instances.options(), "--dest", str(to), *map(str, pins)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DOWNLOAD_DEADLINE_S,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _refuse(
            job,
            f"was not met within {DOWNLOAD_DEADLINE_S:g} s",
            "give a folder with the wheels as model.wheelhouse",
        ) from error
    if done.returncode:
        lacking = _NO_WHEEL.search(done.stderr)
        if lacking is None:
            raise _refuse(job, f"cannot be met: {said_by_pip(done.stderr)}", "see to that")
        raise _refuse(
            job,
            f"pins {lacking[1]}, which has no wheel for the instances, {instances.words()}, "
            + (f"in {own}" if own else "where pip looks"),
            "take another version, or put such a wheel into a folder and name that in "
            "model.wheelhouse",
        )
    for pin in pins:
        if pin.hashes and sha256_of(_wheel_of(to, pin.name)) not in pin.hashes:
            raise _refuse(
                job,
                f"has other hashes of {pin} than its wheel",
                "write the file again, or leave them out",
            )


def _needed(
    job: JobConfig, instances: _Instances, folder: Path, versions: Mapping[str, str]
) -> dict[str, Pin]:
    """What these wheels need and nobody has, in the versions that are here."""
    found: dict[str, Pin] = {}
    has = {**instances.brought, **versions}
    for name, need in _all_needs(folder, versions, instances.environment):
        one = canonicalize_name(need.name)
        there = has.get(one) or _version_here(one)
        if there is None:
            raise _refuse(
                job,
                f"pins {name}=={versions[name]}, which needs {need}, and pins none",
                f"add a line {one}==VERSION",
            )
        if one not in has:
            found[one] = Pin(name=one, version=there)
        if not need.specifier.contains(_plain(there), prereleases=True):
            raise _refuse(
                job,
                f"pins {name}=={versions[name]}, which needs {need}, and instances get {there}",
                "take versions that fit",
            )
    return found


def _all_needs(
    folder: Path, names: Iterable[str], environment: Mapping[str, str]
) -> set[tuple[str, Requirement]]:
    """(name, what it needs) of all these wheels, with the extras that they ask of each other."""
    extras: dict[str, set[str]] = {name: {""} for name in names}
    before, found = -1, set[tuple[str, Requirement]]()
    while len(found) > before:
        before = len(found)
        for name, asked in extras.items():
            wheel = _wheel_of(folder, name)
            for need in (n for extra in sorted(asked) for n in _needs(wheel, environment, extra)):
                found.add((name, need))
                extras.get(canonicalize_name(need.name), set()).update(need.extras)
    return found


def _needs(wheel: Path, environment: Mapping[str, str], extra: str) -> Iterator[Requirement]:
    """What a wheel, with this extra of it, says that it needs there."""
    try:
        with zipfile.ZipFile(wheel) as packed:
            about = next(n for n in packed.namelist() if n.endswith(".dist-info/METADATA"))
            said = HeaderParser().parsestr(packed.read(about).decode("utf-8", "replace"))
        for text in said.get_all("Requires-Dist") or ():
            need = Requirement(text)
            if _applies(need, environment, extra):
                yield need
    except (zipfile.BadZipFile, StopIteration, InvalidRequirement, KeyError) as error:
        raise InputError(
            f"{wheel.name} is no wheel that can be read ({error}); get it again"
        ) from error


def _wheel_of(folder: Path, name: str) -> Path:
    return next(path for path in folder.glob("*.whl") if parse_wheel_filename(path.name)[0] == name)


def _stored(aside: Path, python: str, versions: Mapping[str, str]) -> Wheels:
    """Give the folder its name by what is in it."""
    found = Wheels(
        python=python,
        wheels={path.name: sha256_of(path) for path in sorted(aside.glob("*.whl"))},
        versions=dict(sorted(versions.items())),
    )
    write_manifest(aside, found)
    target = kept_at(found.digest)
    if target.exists():
        shutil.rmtree(target)  # it may be damaged
    aside.rename(target)
    return found


def _version_here(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _applies(need: Requirement, environment: Mapping[str, str], extra: str = "") -> bool:
    return need.marker is None or need.marker.evaluate({**environment, "extra": extra})


def _here() -> dict[str, str]:
    return {name: str(value) for name, value in default_environment().items()}


def _plain(version: str) -> str:
    """Without the name of a build, such as `+cpu`."""
    return version.partition("+")[0]


def _refuse(job: JobConfig, problem: str, remedy: str) -> InputError:
    return InputError.at(
        file=job.file, key=KEY, value=job.model.requirements, problem=problem, remedy=remedy
    )
