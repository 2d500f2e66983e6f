"""What others lay at the name of a file that a user is about to write.

`.venv/bin/python -m tests.security.laid_names [BAMBOO]` lays links and a pipe at the name given to
`bamboo trace synth`, in a folder of its own, with and without --force; it lists what was written
through them or was waited for. BAMBOO is the command of any release, else the one beside this
Python; its exit status is 1 if there is any, 2 if that command cannot write where nothing was laid.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

WITHIN_S = 60.0
_SYNTH = ("trace", "synth", "--preset", "calm", "--nodes", "2", "--hours", "1", "--seed", "1")
_MINE = "what the user has"

Run = Callable[[Sequence[str]], bool]
"""Runs the command with these arguments; whether it came to an end."""


def written_through(run: Run, place: Path) -> list[str]:
    """A sentence for each way in which the command did something to what was laid there."""
    found = []
    for name, lay in _WAYS.items():
        for force in ((), ("--force",)):
            folder = Path(tempfile.mkdtemp(dir=place))
            victim, absent, out = (folder / one for one in ("victim", "absent", "out.csv"))
            victim.write_text(_MINE)
            lay(folder, out)
            ended = run([*_SYNTH, str(out), *force])
            how = f"{name}, with {force[0]}" if force else name
            if not ended:
                found.append(f"{how}: it waits")
            if victim.read_text() != _MINE:
                found.append(f"{how}: the file that the link leads to was written")
            if name == "a link to nothing" and absent.exists():
                found.append(f"{how}: the file that the link leads to was made")
            odd = {one.name for one in folder.iterdir()} - {"victim", "absent", "out.csv"}
            found += [f"{how}: {one} is left" for one in sorted(odd)]
    return found


def _links(folder: Path, out: Path) -> None:
    between = folder / "absent"
    between.symlink_to(folder / "victim")
    out.symlink_to(between)


_WAYS: dict[str, Callable[[Path, Path], None]] = {
    "a link to a file": lambda folder, out: out.symlink_to(folder / "victim"),
    "a link to nothing": lambda folder, out: out.symlink_to(folder / "absent"),
    "a link to a link": _links,
    "a second name of a file": lambda folder, out: out.hardlink_to(folder / "victim"),
    "a pipe": lambda folder, out: os.mkfifo(out),
}


def main(arguments: Sequence[str]) -> int:
    """The command; see the top of the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.laid_names")
    beside = Path(sys.executable).with_name("bamboo")
    parser.add_argument("bamboo", nargs="?", metavar="BAMBOO", default=beside)
    command = parser.parse_args(arguments).bamboo

    def run(rest: Sequence[str]) -> bool:
        try:
            subprocess.run(
                [command, *rest], check=False, capture_output=True, timeout=WITHIN_S,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        return True

    with tempfile.TemporaryDirectory() as place:
        free = Path(place) / "free.csv"
        try:
            run([*_SYNTH, str(free)])
        except OSError as error:
            parser.error(f"nothing was tried: {command}: {error.strerror}")
        if not free.exists():
            parser.error(f"nothing was tried: {command} trace synth writes no file")
        found = written_through(run, Path(place))
    sys.stdout.write("\n".join(found or ["nothing was written through what was laid"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
