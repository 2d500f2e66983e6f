"""Who has not answered is the same whether it was handed on or is found anew."""

from hypothesis import given
from hypothesis import strategies as st

from bamboo.core.rounds import Answers, answers
from bamboo.core.state import Built
from bamboo.ids import NodeId

names = st.integers(0, 9).map(lambda number: NodeId(f"n{number}"))
groups = st.frozensets(names).map(lambda group: tuple(sorted(group)))


@given(groups, st.none() | groups, st.lists(names, max_size=8, unique=True), st.booleans())
def test_the_silent_are_those_who_have_not_answered(
    asked: tuple[NodeId, ...],
    among: tuple[NodeId, ...] | None,
    speakers: list[NodeId],
    count_from_the_start: bool,
) -> None:
    said: Answers[Built] = answers(())
    if count_from_the_start:
        said.silent(asked, among)
    for number, speaker in enumerate(speakers):
        assert not said.has(speaker)
        said = said.having(Built(node=speaker, bytes=number))
        assert said.has(speaker)
    heard = set(speakers)
    expected = {n for n in asked if n not in heard and (among is None or n in among)}
    assert said.silent(asked, among) == expected
    assert said.silent(asked) == set(asked) - heard
    assert said.silent(asked, among) == expected
    assert [one.node for one in said] == speakers
    assert said == tuple(said)


def test_pairs_are_answers_too() -> None:
    ready = answers(((NodeId("a"), 3),)).having((NodeId("b"), 4))
    assert ready.silent(("a", "b", "c")) == {"c"}
    assert ready.has(NodeId("a"))
    assert answers(ready) is ready
