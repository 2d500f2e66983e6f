"""The answers of many nodes to one question, and the nodes that have not answered yet.

Rule: a reconfiguration asks every node three times, so counting the missing answers must not go
through all nodes each time. The silent nodes are found once and handed on from answer to answer.
"""

from collections.abc import Collection
from typing import Protocol, TypeVar

from bamboo.ids import NodeId


class _Signed(Protocol):
    @property
    def node(self) -> NodeId: ...


T = TypeVar("T", bound=_Signed | tuple[NodeId, int])
_Known = tuple[Collection[NodeId], Collection[NodeId] | None, frozenset[NodeId]]
"""The nodes that were asked, the nodes among which they count, and those of them that are
silent."""


class Answers(tuple[T, ...]):
    """Answers in the order in which they came; equal to any tuple of the same answers."""

    _known: _Known = ((), None, frozenset())
    """One value that is set as a whole, since several threads may ask."""

    def silent(
        self, asked: Collection[NodeId], among: Collection[NodeId] | None = None
    ) -> frozenset[NodeId]:
        """The nodes of `asked` that have not answered; with `among`, only those that are in it
        too."""
        known_asked, known_among, silent = self._known
        if known_asked is not asked or known_among is not among:
            those = frozenset(asked) if among is None else frozenset(among).intersection(asked)
            silent = those.difference(map(_node, self))
            self._known = (asked, among, silent)
        return silent

    def has(self, node: NodeId) -> bool:
        """Whether `node` has answered."""
        *_, silent = self._known
        return node not in silent and any(_node(answer) == node for answer in self)

    def having(self, *more: T) -> "Answers[T]":
        """Return the answers with these added."""
        after = Answers((*self, *more))
        asked, among, silent = self._known
        after._known = (asked, among, silent.difference(map(_node, more)))
        return after


def answers(given: tuple[T, ...]) -> Answers[T]:
    """Return `given` as Answers; the same object if it is that already."""
    return given if isinstance(given, Answers) else Answers(given)


def _node(answer: _Signed | tuple[NodeId, int]) -> NodeId:
    return answer[0] if isinstance(answer, tuple) else answer.node
