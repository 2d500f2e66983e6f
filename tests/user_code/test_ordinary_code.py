"""What ordinary code does with paths comes to the same from the run's copy, whatever became of what
it was copied from."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from bamboo.user_code.bundle import load_bundle, write_bundle
from bamboo.user_code.guard import unguarded
from bamboo.user_code.loading import entry_of, forget_loaded, load_entry
from bamboo.user_code.recording import recording
from tests.user_code.files import write

HEAD = """
import contextlib, glob, importlib.util, json, logging, os, shutil, sys, tempfile
from pathlib import Path
HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = {root!r}
def read(path):
    with open(path) as file:
        return file.read()
"""
FILES = {
    "src/d/a.txt": "a",
    "src/d/b.txt": "bb",
    "src/a.txt": "top",
    "src/run.log": "old",
    "lib/thing.py": "X = 3\n",
    "lib/thing-1.py": "X = 4\n",
    "r1/parts/one.py": "X = 1\n",
    "r2/parts/two.py": "X = 2\n",
}
LOADS = """
def load(path, name, keep):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    if keep:
        sys.modules[name] = module
    spec.loader.exec_module(module)
    return module.X
"""
ORDINARY = {
    "a folder above on the path": (
        "sys.path.append(os.path.join(HERE, '..', 'lib'))\nimport thing\n"
        "def result(): return thing.X\n"
    ),
    "a module loaded by its path": (
        LOADS + "def result(): return load(HERE + '/../lib/thing-1.py', 'other', True), "
        "load(ROOT + '/lib/thing.py', 'second', False)\n"
    ),
    "a package in two places": (
        "sys.path[:0] = [ROOT + '/r1', ROOT + '/r2']\nimport parts.one, parts.two\n"
        "def result(): return parts.one.X, parts.two.X\n"
    ),
    "another working directory": (
        "def result():\n"
        "    first = read('a.txt')\n"
        "    with contextlib.chdir('d'):\n"
        "        inner = read('a.txt'), os.path.basename(os.getcwd())\n"
        "    os.chdir(HERE + '/d')\n"
        "    return first, inner, read('a.txt'), os.path.exists('b.txt')\n"
    ),
    "folders by a relative path": (
        "def result(): return [read(p) for p in sorted(glob.glob('d/*.txt'))] + "
        "sorted(p.read_text() for p in Path('d').iterdir())\n"
    ),
    "files beside an open folder": (
        "def result():\n"
        "    read = []\n"
        "    for _, _, names, folder in os.fwalk(HERE + '/d'):\n"
        "        for name in sorted(names):\n"
        "            file = os.open(name, os.O_RDONLY, dir_fd=folder)\n"
        "            read.append((os.read(file, 9).decode(), os.fstat(file).st_size))\n"
        "            os.close(file)\n"
        "    return read\n"
    ),
    "what is only looked at": (
        "def result():\n"
        "    at = os.stat('d/b.txt')\n"
        "    return (os.path.getsize('a.txt'), os.path.getmtime('a.txt'), at.st_mtime_ns,\n"
        "            Path('d').is_dir(), os.access('a.txt', os.R_OK), os.access('none', os.F_OK),\n"
        "            os.path.samefile('a.txt', 'd/a.txt'), Path('a.txt').is_file())\n"
    ),
    "a folder for the time being": (
        "def result():\n"
        "    with tempfile.TemporaryDirectory() as folder:\n"
        "        shutil.copy('a.txt', folder)\n"
        "        shutil.copytree(HERE + '/d', folder + '/copy')\n"
        "        Path(folder, 'new').write_text('n')\n"
        "        os.replace(folder + '/new', folder + '/newer')\n"
        "        return (sorted(os.listdir(folder)), Path(folder, 'newer').read_text(),\n"
        "                os.path.exists(folder + '/new'), Path(folder, 'copy/b.txt').read_text())\n"
    ),
    "a log that is added to": (
        "def result():\n"
        "    with contextlib.closing(logging.FileHandler('run.log')) as handler:\n"
        "        handler.emit(logging.makeLogRecord({'msg': 'x'}))\n"
    ),
    "a library that looks before it opens": (
        "from dotenv import dotenv_values\n"
        "def result(): return sorted(dotenv_values('a.txt')), dotenv_values('none')\n"
    ),
    "its own real folder": (
        "def result(): return Path(__file__).resolve().with_name('a.txt').read_text()\n"
    ),
}


@pytest.mark.parametrize("what", ORDINARY)
def test_it_comes_to_the_same_from_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    write(tmp_path, FILES | {"src/m.py": HEAD.format(root=str(tmp_path)) + ORDINARY[what]})
    monkeypatch.chdir(tmp_path / "src")
    # A project may lie behind a link.
    (tmp_path / "link").symlink_to(tmp_path / "src")
    at_launch = _recorded(tmp_path / "link/m.py", tmp_path / "run")
    for folder in ("src", "lib", "r1", "r2"):
        for file in (tmp_path / folder).rglob("*.*"):
            file.write_text("raise SystemExit('the edited file was loaded')\n")
    _same(tmp_path / "run", at_launch)
    for folder in ("src", "lib", "r1", "r2"):
        shutil.rmtree(tmp_path / folder)
    _same(tmp_path / "run", at_launch)


def _recorded(model: Path, run: Path) -> Any:
    with recording() as recorder:
        result = load_entry(entry_of(model)).result()
        manifest = recorder.manifest(entry_of(model))
    write_bundle(manifest, run)
    return json.dumps(result)


def _same(run: Path, at_launch: Any) -> None:
    os.chdir(run.parent)
    assert json.dumps(load_bundle(run).result()) == at_launch
    unguarded()
    forget_loaded()
