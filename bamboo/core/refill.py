"""The decision after a store that lost the run was refilled; it begins a new generation.

Rule: decisions after the version that the store was given are void, and whatever was reported then
is reported again. The new generation tells messages and reports from before and after apart.
"""

from dataclasses import replace

from bamboo.core.events import StoreRefilled
from bamboo.core.state import State
from bamboo.core.transition import Transition, changed


def refill(state: State, event: StoreRefilled) -> Transition:
    """Go on from `state`, the newest that any member had read, under the next generation. Before
    the first generation there is none to end."""
    generation = state.generation + 1 if state.generation else 0
    reason = f"the store had lost the run; {event.reporter} gave it version {state.version} back"
    return changed(replace(state, generation=generation), (), reason)
