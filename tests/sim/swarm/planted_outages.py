"""Planted bugs of a store that is away, refuses or has lost the run; `planted` has the others."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from bamboo.core import machine
from bamboo.core.events import StoreRefilled
from bamboo.core.liveness.outage import WaitClock, Writing
from bamboo.core.state import State
from bamboo.core.transition import Transition, changed
from testbed.swarm.voice import Voice


def refilled_under_the_same_generation() -> AbstractContextManager[Any]:
    """A store that was given the run back goes on under the generation that it had."""

    def refill(state: State, event: StoreRefilled) -> Transition:
        return changed(replace(state), (), f"{event.reporter} gave the run back")

    return patch.object(machine, "refill", refill)


@contextmanager
def judged_whatever_is_refused() -> Iterator[None]:
    """A lease that nobody could renew is old and its node gone, which is said until it is heard."""
    with (
        patch.object(Writing, "waited_s", lambda self, since_s: since_s),
        patch.object(Voice, "say_at_once", Voice.say_apart),
    ):
        yield


def patient_whatever_is_refused() -> AbstractContextManager[Any]:
    """Nodes that could not say that they came are waited for no longer."""
    return patch.object(WaitClock, "at", lambda self, now_s: now_s)
