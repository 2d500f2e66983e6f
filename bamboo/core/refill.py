"""A store that lost the run has been given it back: one more decision, under a new generation.

Rule: what was decided after the version that the store was given is void; whoever said it says it
again. The new generation keeps what was said under a void one apart from what is said from now on.
"""

from dataclasses import replace

from bamboo.core.events import StoreRefilled
from bamboo.core.state import State
from bamboo.core.transition import Transition, changed


def refill(state: State, event: StoreRefilled) -> Transition:
    """Go on from `state`, the newest that anybody had read. Before the first generation there is
    none to end."""
    generation = state.generation + 1 if state.generation else 0
    reason = f"the store had lost the run; {event.reporter} gave it version {state.version} back"
    return changed(replace(state, generation=generation), (), reason)
