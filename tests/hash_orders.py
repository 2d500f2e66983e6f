"""The same code in processes whose sets are in different orders."""

import os
import subprocess
import sys


def said_whatever_the_hash(code: str) -> str:
    """What `code` prints: the same in fresh processes whose sets are in other orders."""
    said = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(said) == 1, "it depends on the order of sets"
    return said.pop()
