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


class Answers(tuple[T, ...]):
    """In the order in which they came; equal to any tuple of the same."""

    _asked: Collection[NodeId] = ()
    _among: Collection[NodeId] | None = None
    _silent: frozenset[NodeId] = frozenset()
    """Of `_asked`, among `_among`."""

    def silent(
        self, asked: Collection[NodeId], among: Collection[NodeId] | None = None
    ) -> frozenset[NodeId]:
        """Who of `asked` has not answered; with `among` only those of them who are there too."""
        if self._asked is not asked or self._among is not among:
            those = frozenset(asked) if among is None else frozenset(among).intersection(asked)
            self._asked, self._among = asked, among
            self._silent = those.difference(map(_node, self))
        return self._silent

    def has(self, node: NodeId) -> bool:
        """Whether `node` has answered."""
        return node not in self._silent and any(_node(answer) == node for answer in self)

    def having(self, *more: T) -> "Answers[T]":
        """The same, and these."""
        after = Answers((*self, *more))
        after._asked, after._among = self._asked, self._among
        after._silent = self._silent.difference(map(_node, more))
        return after


def answers(given: tuple[T, ...]) -> Answers[T]:
    """`given`, and all that is known of them."""
    return given if isinstance(given, Answers) else Answers(given)


def _node(answer: _Signed | tuple[NodeId, int]) -> NodeId:
    return answer[0] if isinstance(answer, tuple) else answer.node
