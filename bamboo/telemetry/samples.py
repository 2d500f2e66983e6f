"""The record of what a committed step used: one line of `samples.jsonl`.

Rule: the node that took the step writes the record, from the losses that were really summed and not
from the plan: the microbatches by number, and a digest of their samples. A step may be recorded
again (by a successor, after a restore, by a launcher that reads the store again). The text is then
the same, because the same step uses the same samples.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from bamboo.errors import InputError
from bamboo.telemetry.records import SCHEMA_VERSION, Tail

DIGEST_DIGITS = 16
LONGEST_RANGE = 1 << 24
"""More microbatches than a step of any run has, so that a damaged range cannot fill the memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplesRecord:
    """What one committed step used."""

    step: int
    """Index of the step; the first is 0."""
    microbatches: tuple[int, ...]
    """Global microbatch indices, as recorded; one that appears twice was used twice."""
    digest: str
    """`samples_digest` over the samples of these microbatches, in ascending order of them."""

    def to_json(self) -> str:
        """The line, without its newline: `{v, step, microbatches: "0-7", samples}`."""
        body = {
            "v": SCHEMA_VERSION,
            "step": self.step,
            "microbatches": ranges_text(self.microbatches),
            "samples": self.digest,
        }
        return json.dumps(body, separators=(",", ":"))

    @classmethod
    def from_json(cls, line: str) -> "SamplesRecord":
        """Read a line. Raises InputError for anything else."""
        try:
            raw = json.loads(line)
            if raw["v"] != SCHEMA_VERSION:
                raise InputError(
                    f"samples record has schema {raw['v']!r}, this program reads "
                    f"{SCHEMA_VERSION}; use the version that wrote it"
                )
            return cls.of_step(int(raw["step"]), raw)
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
            raise InputError(
                f"a samples record lacks or garbles {error}: {line[:120]}; take the original"
            ) from error

    @classmethod
    def of_step(cls, step: int, used: Mapping[str, Any]) -> "SamplesRecord":
        """The record of what `used` returned. Raises KeyError, TypeError, ValueError on anything
        else."""
        if step < 0:
            raise ValueError(f"step {step}")
        return cls(
            step=step,
            microbatches=microbatches_of(str(used["microbatches"])),
            digest=str(used["samples"]),
        )


def used(microbatches: Iterable[int], samples_of: Callable[[int], Sequence[int]]) -> dict[str, str]:
    """A node's report of a step: `{microbatches, samples}`. `samples_of` gives the samples that the
    node's own data hold for a microbatch of that step."""
    ordered = sorted(microbatches)
    return {
        "microbatches": ranges_text(ordered),
        "samples": samples_digest(chain.from_iterable(map(samples_of, ordered))),
    }


def samples_digest(samples: Iterable[int]) -> str:
    """16 hex digits of SHA-256 over the numbers in decimal, with commas between."""
    text = ",".join(map(str, samples))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_DIGITS]


def ranges_text(numbers: Iterable[int]) -> str:
    """`0-3,8,10-11`: the numbers in their order, neighbours that count up as one range."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in ranges)


def microbatches_of(text: str) -> tuple[int, ...]:
    """The numbers that `ranges_text` wrote. Raises ValueError on anything else."""
    out: list[int] = []
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        start = int(first)
        stop = int(last) + 1 if dash else start + 1
        if not 0 <= stop - start <= LONGEST_RANGE:
            raise ValueError(f"the range {part!r}")
        out += range(start, stop)
    return tuple(out)


def read_samples(path: Path) -> list[SamplesRecord]:
    """All records of a file, as they were written; a line torn by a kill is skipped.

    Raises InputError when there is no such file, or a record in it cannot be read.
    """
    if not path.exists():
        raise InputError(
            f"{path}: there is none; the run never took a step, or was trained by a release that "
            "did not record what its steps used"
        )
    out = []
    for line in Tail(path).lines():
        try:
            out.append(SamplesRecord.from_json(line))
        except InputError as error:
            if line.rstrip().endswith("}"):
                raise InputError(f"{path}: {error}") from error
    return out
