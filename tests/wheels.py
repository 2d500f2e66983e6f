"""Wheels that tests build themselves: one module each, without an index or a build."""

import base64
import hashlib
import zipfile
from collections.abc import Sequence
from pathlib import Path

ANY = "py3-none-any"


def build_wheel(
    folder: Path,
    name: str,
    version: str = "1.0",
    *,
    source: str = "",
    needs: Sequence[str] = (),
    tag: str = ANY,
) -> Path:
    """A wheel with the module `name` in this folder, which is made. Returns its path."""
    folder.mkdir(parents=True, exist_ok=True)
    about = "".join(f"Requires-Dist: {need}\n" for need in needs)
    info, kind = f"{name}-{version}.dist-info", f"Root-Is-Purelib: true\nTag: {tag}\n"
    files = {
        f"{name}.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{about}",
        f"{info}/WHEEL": f"Wheel-Version: 1.0\nGenerator: tests\n{kind}",
    }
    record = [
        f"{path},sha256={_digest(text)},{len(text.encode())}\n" for path, text in files.items()
    ]
    files[f"{info}/RECORD"] = "".join([*record, f"{info}/RECORD,,\n"])
    wheel = folder / f"{name}-{version}-{tag}.whl"
    with zipfile.ZipFile(wheel, "w") as packed:
        for path, text in files.items():
            packed.writestr(path, text)
    return wheel


def unpacked(wheel: Path, folder: Path) -> Path:
    """As pip would install it there."""
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(folder)
    return folder


def _digest(text: str) -> str:
    found = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(found).rstrip(b"=").decode()
