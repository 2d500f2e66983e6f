"""From the moment that all are to stop for a new layout, owners take a step when every shadow has.

Rule: whoever is lost in a step so taken, a step is left that every slot has. After a loss all stop
where they are and nobody computes. Did owners take the step as they can, a slot that only its owner
has left could be a step ahead of one that only its shadow has: what its owner sent was lost with
it. So gradients are shipped first, and who owns a slot that has a shadow waits. Until all shadows
have stepped every owner stands before the step, and so does, or has its gradient, whoever shadows
the slot of the one who is lost; from then on every shadow is beyond it, and an owner that is not
has its gradient and the norm. A slot without a shadow is safe only when its owner has stepped: it
does not wait. What was taken before the question is not so (README, How all stop).
"""

from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.wire.messages import Mailbox


class ShadowsFirst:
    """Whether a node's owners wait so."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.wanted = False
        """From the question which step is begun on: the last one may be in hand already."""

    def waits(self, run: SlotRun) -> bool:
        """Whether the owner may ship its gradient, and not take the step yet."""
        if not self.wanted or self._mailbox.assignment.shadow(run.slot) is None:
            return False
        return self._mailbox.safe_step <= run.step
