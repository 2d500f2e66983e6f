"""What a checkpoint costs, and how many steps lie between two where a job leaves that to the plan.

Rule: pure; a launch, a simulation, `plan` and `cost` take the interval of their figures from here,
and this takes it from the one formula (`checkpoint_interval`). A checkpoint is placement: it
changes time and bill, never a bit. What is hidden behind the training (writing) costs no time, what
is not (the copy in memory) does; requests to a bucket cost dollars, which count as the time in
which the instances cost as much.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, inf

from bamboo.planner.checkpoint_interval import best_interval_s

AUTO_LEAST_S = 300.0
"""A run whose calm steps take no longer in all has no periodic checkpoint, unless its job gives an
interval: a loss that no live copy survives costs it less than five minutes."""
LONGEST_S = 3600.0
"""No more work than this lies between two, however rare fatal losses are said to be: how often they
come is a model, and a copy an hour costs next to nothing."""
PAUSE_S = 0.005
COPY_BYTES_PER_S = 1e9
"""What a checkpoint takes of the training: a pause, and a copy of the state of the largest stage in
memory. Together 9 ms where a stage has 2.6 MB: `benchmarks.elastic`, one every five steps of 345 ms
on the virtual device at +0.5 %. A thread copied 400 MB into new memory at 0.6 GB/s and 64 MB at
2 GB/s on a busy machine of two cores; the memory of a GPU copies faster."""
REQUESTS = 1000
"""What the price of a request is of."""
PART_BYTES = 64 << 20
"""An object that is larger goes up in parts of this size, a request each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shards:
    """What a checkpoint of a plan consists of, and where it goes."""

    stage_bytes: tuple[float, ...]
    """Of each stage: parameters and moments."""
    store_bytes_per_s: float = 0.0
    """Between one node and the checkpoints; 0: sizes do not matter."""
    put_usd: float = 0.0
    """Of a request; 0: they go to a directory."""

    @property
    def cost_s(self) -> float:
        """What one takes of the training."""
        return PAUSE_S + max(self.stage_bytes, default=0.0) / COPY_BYTES_PER_S

    @property
    def written_s(self) -> float:
        """Until one stands; another that is due before is given up."""
        rate = self.store_bytes_per_s
        return max(self.stage_bytes, default=0.0) / rate if rate else 0.0

    @property
    def usd(self) -> float:
        """What the requests of one cost."""
        return self.put_usd * checkpoint_puts(self.stage_bytes)


def checkpoint_puts(shard_bytes: Sequence[float]) -> int:
    """Requests that write one checkpoint of these shards: each in parts of PART_BYTES with a begin
    and an end where there are several, a description of each, and the manifest that makes it
    complete."""
    pieces = [max(1, ceil(size / PART_BYTES)) for size in shard_bytes]
    return 1 + len(pieces) + sum(count if count == 1 else count + 2 for count in pieces)


def is_long(run_s: float) -> bool:
    """Whether a run of so many seconds of calm steps writes periodic checkpoints by itself."""
    return run_s > AUTO_LEAST_S


def steps_between(
    shards: Shards, *, step_s: float, steps: int, fatal_per_hour: float, usd_per_hour: float
) -> int:
    """The interval of a run of so many calm steps: by Daly's and Young's formula
    (`best_interval_s`) over fatal losses, those that no live copy survives; no shorter than a
    checkpoint takes to be written, no longer than LONGEST_S; 0: the run is too short for any.
    `usd_per_hour`: of all instances.
    """
    if not is_long(step_s * steps):
        return 0
    dear_s = shards.usd / usd_per_hour * 3600 if usd_per_hour > 0 else 0.0
    between_s = 3600 / fatal_per_hour if fatal_per_hour > 0 else inf
    wanted_s = best_interval_s(cost_s=shards.cost_s + dear_s, between_losses_s=between_s)
    whole = round(min(wanted_s, LONGEST_S) / step_s)
    return max(1, whole, ceil(shards.written_s / step_s))
