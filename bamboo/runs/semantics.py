"""The difference between two trainings, in the keys of a job file.

Rule: every difference between two semantic hashes has a name here.
"""

import re
from dataclasses import asdict

from bamboo.topology.strategy import Semantics


def differences(ours: Semantics, theirs: Semantics) -> list[tuple[str, object, object]]:
    """Key, our value and theirs for each difference, with keys of the job file where there is one;
    None: there is no such value."""
    left, right = _flat(ours), _flat(theirs)
    return [
        (name, left.get(name), right.get(name))
        for name in sorted(left.keys() | right.keys())
        if left.get(name) != right.get(name)
    ]


def told(value: object) -> str:
    """A value as an error shows it; a digest is shortened to what tells two of them apart."""
    text = repr(value)
    if isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value):
        text = repr(f"{value[:12]}…")
    return text


def _flat(semantics: Semantics) -> dict[str, object]:
    """Each value that counts, by the key that it comes from."""
    flat: dict[str, object] = {}
    for name, value in asdict(semantics).items():
        if name == "data_digest":
            flat["the digest of the data"] = value
        elif name == "segments":
            flat["the learning rate of the steps before"] = value or None
        elif name == "init":
            flat["the digest of train.init"] = value or None
        elif isinstance(value, dict):
            flat |= _named("train" if name == "optimizer" else name, value)
        else:
            flat[f"train.{name}"] = value
    return flat


def _named(section: str, values: dict[str, object]) -> dict[str, object]:
    """Each value by its key; of a table within, such as the files of `model.code`, each one too, so
    that an error shows only what differs."""
    out: dict[str, object] = {}
    for key, one in values.items():
        if isinstance(one, dict) and one:
            out |= _named(f"{section}.{key}", one)
        else:
            out[f"{section}.{key}"] = one
    return out
