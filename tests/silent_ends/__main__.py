"""`python -m tests.silent_ends SEED…`: show the files of a case and play it."""

import sys

from tests.silent_ends.generate import case_of
from tests.silent_ends.play import Player


def main(seeds: list[str]) -> None:
    """Play the cases of these seeds, one after the other."""
    player = Player()
    try:
        for case in map(case_of, map(int, seeds)):
            for path, text in case.files.items():
                if path.endswith(".py"):
                    sys.stdout.write(f"--- {path}\n{text}\n")
            said = "\n".join(f"    {verdict}" for verdict in player.play(case))
            sys.stdout.write(f"{case}\ncut {case.cut}, {case.kill}\n{said}\n")
    finally:
        player.close()


if __name__ == "__main__":
    main(sys.argv[1:])
