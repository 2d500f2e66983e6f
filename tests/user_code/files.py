"""Small trees of source files, and what a run would take along of one."""

from collections.abc import Mapping
from pathlib import Path

from bamboo.user_code.bundle import write_bundle
from bamboo.user_code.loading import entry_of, load_entry
from bamboo.user_code.manifest import Manifest
from bamboo.user_code.recording import recording


def write(folder: Path, files: Mapping[str, str]) -> None:
    """Make these files, with the folders that they lie in."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def recorded(model: Path) -> Manifest:
    """What the model in this file was built from; its `build()` is called where it has one."""
    with recording() as recorder:
        module = load_entry(entry_of(model))
        if hasattr(module, "build"):
            module.build()
        return recorder.manifest(entry_of(model))


def bundled(model: Path, folder: Path) -> Manifest:
    """The same, written into a run's folder."""
    manifest = recorded(model)
    write_bundle(manifest, folder)
    return manifest


def paths(manifest: Manifest) -> list[str]:
    return [file.path for file in manifest.files]


def moved(folder: Path) -> None:
    """The user's files are edited or gone: here both."""
    for file in folder.rglob("*.py"):
        file.write_text("raise SystemExit('the edited file was loaded')\n", encoding="utf-8")
    folder.rename(folder.with_name("moved"))
