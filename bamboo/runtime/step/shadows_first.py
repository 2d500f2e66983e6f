"""Once all nodes are to stop for a new layout, an owner takes a step only after every shadow has.

Rule: whichever node is lost in such a step, there is a step that every slot still has. After a loss
all nodes stop where they are and nobody computes. If owners took the step as soon as they can, a
slot that only its owner still has could be a step ahead of a slot that only its shadow has, because
what the lost owner sent was lost with it. So owners ship their gradients first, and the owner of a
slot with a shadow then waits. Until all shadows have stepped, every owner stands before the step,
and the shadow of the lost node's slot stands there too or has its gradient. From then on every
shadow is beyond the step, and an owner that is not has its gradient and the norm. A slot without a
shadow does not wait: it is safe only when its owner has stepped. The rule does not hold for a step
that was taken before the question (README, How all stop).
"""

from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.wire.messages import Mailbox


class ShadowsFirst:
    """Whether the owners of a node wait in this way."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self.wanted = False
        """Set from the question which step is begun: that step may be the last one already."""

    def waits(self, run: SlotRun) -> bool:
        """Whether the owner may ship its gradient but not take the step yet."""
        if not self.wanted or self._mailbox.assignment.shadow(run.slot) is None:
            return False
        return self._mailbox.safe_step <= run.step
