"""Keyed randomness: a seed for every random decision, from its purpose and not from its caller."""

import hashlib


def keyed_seed(seed: int, purpose: str, *indices: int) -> int:
    """A 63-bit seed that depends only on the arguments (BLAKE2b of their text).

    Purposes in use: `load` (of the user's file), `init` (none: the user's list; layer), `layer`
    (step, global microbatch, global layer), `shuffle` (data epoch), `sample` (data epoch, sample),
    `evaluation` (none: the seed of its layers; sample).
    """
    text = ":".join([str(seed), purpose, *map(str, indices)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big") >> 1
