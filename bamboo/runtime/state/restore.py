"""Reads layers from a checkpoint in a thread beside the trainer.

Rules. (1) The trainer never waits for a reading: it asks whether the layers have come. (2) Only an
object that is not as it was written is damaged; what cannot be read now is tried again until the
patience is over. (3) A reading ends when its round is over.
"""

import math
import threading
import time
from collections.abc import Collection, Mapping
from typing import Protocol, TypeAlias

from torch import Tensor

from bamboo.core.liveness.patience import READING
from bamboo.errors import NotAsWritten, StorageUnavailable

FIRST_PAUSE_S = 0.2
LONGEST_PAUSE_S = 5.0


class Vault(Protocol):
    """Where checkpoints are written to and read from."""

    def keep(
        self,
        step: int,
        era: int,
        part: int,
        tensors: Mapping[str, Tensor],
        constant: Collection[str],
    ) -> None:
        """Begin to store a part of the state before `step`, and report the outcome; `constant`: its
        tensors that never change. Does not wait; no tensor of the part changes before all parts are
        stored."""

    def load(self, step: int, layers: frozenset[int]) -> Mapping[str, Tensor]:
        """Parameters and moments of these layers, named as in the final files, as they were before
        `step`. Raises NotAsWritten when they are missing or not what was written, StorageFull when
        this node has no room to read them, StorageUnavailable when they cannot be read now."""


Outcome: TypeAlias = Mapping[str, Tensor] | StorageUnavailable
"""What was read, or why it was not."""


def misfit(room: Mapping[str, Tensor], read: Mapping[str, Tensor]) -> str:
    """What the state that was read lacks of `room`, or has in another shape or kind; "" when all
    fits. Without this check a single number would be copied to all elements of a tensor without an
    error."""
    for name, mine in room.items():
        found = read.get(name)
        if found is None:
            return f"it has no {name!r}"
        if (found.shape, found.dtype) != (mine.shape, mine.dtype):
            is_, to_be = (f"{t.dtype} of shape {tuple(t.shape)}" for t in (found, mine))
            return f"{name!r} in it is {is_}, not {to_be}"
    return ""


class Reading:
    """One reading, which starts when it is made. A try may take long as long as it does not fail,
    up to a limit. `patience_s` counts from the first failure: a try that fails later than that is
    the last one."""

    def __init__(
        self, vault: Vault, step: int, layers: frozenset[int], *, patience_s: float
    ) -> None:
        self._vault = vault
        self._step = step
        self._layers = layers
        self._patience_s = patience_s
        self._tried_s = time.monotonic()
        self._over = threading.Event()
        self._outcome: Outcome | None = None
        self._failure: StorageUnavailable | None = None
        threading.Thread(target=self._work, name="restore", daemon=True).start()

    def poll(self) -> Outcome | None:
        """The outcome; None while the reading is under way."""
        waited_s = time.monotonic() - self._tried_s
        if self._outcome is not None or waited_s < READING * self._patience_s:
            return self._outcome
        return self._failure or StorageUnavailable(
            f"neither an answer nor an error within {waited_s:.0f} s ({READING} times "
            "cluster.step_timeout_s)"
        )

    def end(self) -> None:
        """Stop reading: nobody waits for it any more."""
        self._over.set()

    def _work(self) -> None:
        pause_s, give_up_s = FIRST_PAUSE_S, math.inf
        while not self._over.is_set():
            self._tried_s = time.monotonic()
            try:
                self._outcome = self._vault.load(self._step, self._layers)
                return
            except NotAsWritten as error:
                self._outcome = error
                return
            except StorageUnavailable as error:
                self._failure = error
            now_s = time.monotonic()
            if now_s >= give_up_s:
                self._outcome = self._failure
                return
            give_up_s = min(give_up_s, now_s + self._patience_s)
            self._over.wait(min(pause_s, max(give_up_s - now_s, 0.0)))
            pause_s = min(2 * pause_s, LONGEST_PAUSE_S)
