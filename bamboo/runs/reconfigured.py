"""Reconfigurations of a run, as the receipt lists them: from which step, on which layout, at what
cost.

Rule: they are made from the decisions alone, so every launcher of a run gives the same. Only the
number of steps that a restore cost is also read from the steps seen finished, for a restore after
which no node was left to report it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from bamboo.core import events
from bamboo.core.state import State
from bamboo.core.transition import grid_words, why_words
from bamboo.quantities import count, duration, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Reconfigured:
    """All nodes stopped and continued in a new layout."""

    at_s: float
    """When all continued."""
    took_s: float
    """From the decision to stop, waiting for nodes included."""
    grid: str
    step: int
    """The step that all continued from."""
    checkpoint: bool
    """Whether the state was read from a checkpoint."""
    steps_again: int
    """Steps that had been finished and were repeated; at least."""
    sent_bytes: int
    why: str

    def body(self) -> dict[str, Any]:
        """The value in the receipt."""
        return {
            "at_s": self.at_s,
            "took_s": self.took_s,
            "grid": self.grid,
            "step": self.step,
            "checkpoint": self.checkpoint,
            "steps_again": self.steps_again,
            "sent_bytes": self.sent_bytes,
            "why": self.why,
        }


def reconfigured_by(
    before: State,
    after: State,
    event: events.Event,
    *,
    began_s: float,
    at_s: float,
    finished: int,
) -> Reconfigured | None:
    """The reconfiguration that this decision completes, if it completes one. `finished` is the
    number of steps seen finished before."""
    reconfiguration = before.reconfiguration
    if (
        reconfiguration is None
        or reconfiguration.base is None
        or after.reconfiguration is not None
        or after.outcome
    ):
        return None
    newest = max((h.step for r in reconfiguration.reports for h in r.holdings), default=0)
    sent = sum(one.bytes for one in reconfiguration.rebuilt)
    if reconfiguration.ahead is not None:
        sent += reconfiguration.ahead.prepared_bytes
    if isinstance(event, events.LayoutBuilt):
        sent += event.bytes
    return Reconfigured(
        at_s=at_s,
        took_s=at_s - began_s,
        grid=grid_words(after.grid),
        step=reconfiguration.base,
        checkpoint=reconfiguration.checkpoint,
        steps_again=max(0, newest - reconfiguration.base, finished - reconfiguration.base)
        * reconfiguration.checkpoint,
        sent_bytes=sent,
        why=why_words(reconfiguration.why, after.grid),
    )


def reconfigured_line(body: Mapping[str, Any]) -> str:
    """`2 x 4, on from step 31: there are nodes for 2 x 4; 9.4 MiB sent, it took 300 ms`."""
    where = f"step {body['step']}"
    if body["checkpoint"]:
        where = f"the checkpoint of step {body['step']}" if body["step"] else "the beginning"
        where += f", {count(body['steps_again'], 'step')} done again"
    sent = f"{size(body['sent_bytes'])} sent" if body["sent_bytes"] else "nothing had to be sent"
    stood = duration(body["took_s"])
    return f"{body['grid']}, on from {where}: {body['why']}; {sent}, it took {stood}"
