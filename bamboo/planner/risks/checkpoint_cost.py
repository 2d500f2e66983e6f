"""What a checkpoint costs, and how many steps lie between two if a job leaves that to the plan.

Rule: pure. A launch, a simulation, `plan` and `cost` take the interval of their figures from here,
and this file takes it from the one formula (`checkpoint_interval`). A checkpoint is placement: it
changes time and bill, never a bit. Writing is hidden behind the training and costs no time; the
copy in memory is not hidden and does. Requests to a bucket cost dollars, which count as the time in
which the instances cost as much.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from bamboo.planner.risks.checkpoint_interval import best_interval_s

AUTO_LEAST_S = 300.0
"""A run whose calm steps take no longer in all has no periodic checkpoint, unless its job gives an
interval: a loss that no live copy survives then costs it less than five minutes."""
LONGEST_S = 3600.0
"""The longest interval between two checkpoints, however rare fatal losses seem: their rate is a
model, and a copy an hour costs next to nothing."""
PAUSE_S = 0.005
COPY_BYTES_PER_S = 1e9
"""A checkpoint stops the training for PAUSE_S and a copy of the largest stage's state in memory.
Together they took 9 ms for a stage of 2.6 MB: `benchmarks.elastic`, one checkpoint every five steps
of 345 ms on the virtual device, at +0.5 %. A thread copied 400 MB into new memory at
0.6 GB/s and 64 MB at 2 GB/s on a busy machine of two cores; the memory of a GPU copies faster."""
REQUESTS = 1000
"""The price of a request is quoted for this number of requests."""
PART_BYTES = 64 << 20
"""A larger object is uploaded in parts of this size, one request each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """The parts of a plan's checkpoint, and where they are stored."""

    stage_bytes: tuple[float, ...]
    """Parameters and moments of each stage."""
    store_bytes_per_s: float = 0.0
    """Rate between one node and the storage of checkpoints; 0: sizes do not matter."""
    put_usd: float = 0.0
    """Price of a request; 0: checkpoints go to a directory."""

    @property
    def cost_s(self) -> float:
        """The training time that one checkpoint takes."""
        return PAUSE_S + max(self.stage_bytes, default=0.0) / COPY_BYTES_PER_S

    @property
    def written_s(self) -> float:
        """Time until one is written; another that is due before then is skipped."""
        rate = self.store_bytes_per_s
        return max(self.stage_bytes, default=0.0) / rate if rate else 0.0

    @property
    def usd(self) -> float:
        """The price of one checkpoint's requests."""
        return self.put_usd * checkpoint_puts(self.stage_bytes)


def checkpoint_puts(shard_bytes: Sequence[float]) -> int:
    """Requests that write one checkpoint of these shards. Each shard takes one request per part of
    PART_BYTES, plus a begin and an end if there are several, and a description. The manifest that
    makes the checkpoint complete is one more."""
    pieces = [max(1, ceil(size / PART_BYTES)) for size in shard_bytes]
    return 1 + len(pieces) + sum(count if count == 1 else count + 2 for count in pieces)


def is_long(run_s: float) -> bool:
    """Whether a run of this many seconds of calm steps writes periodic checkpoints by default."""
    return run_s > AUTO_LEAST_S


def steps_between(
    shards: Shards, *, step_s: float, steps: int, fatal_per_hour: float, usd_per_hour: float
) -> int:
    """The interval of a run of `steps` calm steps, by Daly's and Young's formula
    (`best_interval_s`) over fatal losses, those that no live copy survives. It is no shorter than a
    checkpoint takes to be written and no longer than LONGEST_S; 0 if the run is too short for any.
    `usd_per_hour`: price of all instances.
    """
    if not is_long(step_s * steps):
        return 0
    dear_s = shards.usd / usd_per_hour * 3600 if usd_per_hour > 0 else 0.0
    between_s = 3600 / fatal_per_hour if fatal_per_hour > 0 else inf
    wanted_s = best_interval_s(cost_s=shards.cost_s + dear_s, between_losses_s=between_s)
    whole = round(min(wanted_s, LONGEST_S) / step_s)
    return max(1, whole, ceil(shards.written_s / step_s))
