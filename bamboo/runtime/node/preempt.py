"""Listed preemptions of a job's `[chaos]`: the whole instance vanishes at an exact phase.

Rule: this is a real SIGKILL of the instance's process group, agent included, from one machine
instruction to the next; nothing is flushed or sent. Only a job file that lists kills has any.
"""

import json
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from bamboo.config.tree import Kill
from bamboo.jsonl import LineWriter
from bamboo.topology.slots import Slot


class Preemptions:
    """The listed kills without notice that are still to come."""

    def __init__(self, kills: Iterable[Kill], *, node: str, stamp_file: Path | None) -> None:
        self._due = {
            (k.phase, k.pipeline, k.stage, k.step, _microbatch(k)) for k in kills if not k.notice_s
        }
        self._node = node
        self._stamp_file = stamp_file

    def at(self, phase: str, slot: Slot, step: int, microbatch: int) -> None:
        """Kill this instance if it is listed."""
        if not self._due:
            return
        due = (phase, slot.pipeline, slot.stage, step, microbatch)
        if due in self._due:
            self._due.remove(due)
            if not self._happened(phase, slot, step):
                self._vanish(phase, slot, step)

    def spent(self, slot: Slot, step: int) -> None:
        """Note that `slot` has a new owner, whose predecessor may have reached `step`: the kills
        listed up to there were meant for the predecessor, and may be what killed it."""
        self._due = {
            due for due in self._due if due[1:3] != (slot.pipeline, slot.stage) or due[3] > step
        }

    def _happened(self, phase: str, slot: Slot, step: int) -> bool:
        """Whether the kill was done before, in a step that is now done again."""
        if self._stamp_file is None or not self._stamp_file.exists():
            return False
        place = {"slot": str(slot), "step": step, "phase": phase, "cause": "listed"}
        stamps = [json.loads(line) for line in self._stamp_file.read_text().splitlines()]
        return any(place.items() <= stamp.items() for stamp in stamps)

    def _vanish(self, phase: str, slot: Slot, step: int) -> None:
        if self._stamp_file is not None:
            stamp = {
                "t_monotonic_ns": time.monotonic_ns(),
                "node": self._node,
                "slot": str(slot),
                "step": step,
                "phase": phase,
                "cause": "listed",
            }
            with LineWriter(self._stamp_file) as file:
                file.write(json.dumps(stamp))
        os.killpg(os.getpgrp(), signal.SIGKILL)


def _microbatch(kill: Kill) -> int:
    return kill.microbatch if kill.phase in ("forward", "backward", "evaluation") else 0
