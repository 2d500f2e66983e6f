"""Answers of many nodes to one question, and who has not given his.

Rule: a reconfiguration asks every node three times, so whoever counts the missing at each answer
must not go through all of them: who is silent is found once, and handed on from answer to answer.
"""

from collections.abc import Collection
from typing import Protocol, TypeVar

from bamboo.ids import NodeId


class _Signed(Protocol):
    @property
    def node(self) -> NodeId: ...


T = TypeVar("T", bound=_Signed | tuple[NodeId, int])
_Known = tuple[Collection[NodeId], Collection[NodeId] | None, frozenset[NodeId]]
"""Who was asked, among whom, and who of them is silent."""


class Answers(tuple[T, ...]):
    """In the order in which they came; equal to any tuple of the same."""

    _known: _Known = ((), None, frozenset())
    """One value, set at once, for several threads may ask."""

    def silent(
        self, asked: Collection[NodeId], among: Collection[NodeId] | None = None
    ) -> frozenset[NodeId]:
        """Who of `asked` has not answered; with `among` only those of them who are there too."""
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
        """The same, and these."""
        after = Answers((*self, *more))
        asked, among, silent = self._known
        after._known = (asked, among, silent.difference(map(_node, more)))
        return after


def answers(given: tuple[T, ...]) -> Answers[T]:
    """`given`, and all that is known of them."""
    return given if isinstance(given, Answers) else Answers(given)


def _node(answer: _Signed | tuple[NodeId, int]) -> NodeId:
    return answer[0] if isinstance(answer, tuple) else answer.node
