"""What a node says of its progress, while the trainer goes on in another thread."""

from types import SimpleNamespace
from typing import Any, cast

from bamboo.runtime.node.records import progress_of


class Moving:
    """A slot's run that the trainer gives away at the moment somebody looks at it."""

    def __init__(self, owned: dict[str, Any], step: int) -> None:
        self._owned, self._step = owned, step
        self.stage = SimpleNamespace(parameter_bytes=lambda: 10)
        self.tensors: Any = dict
        self.peak_graphs, self.graph_bytes = 1, 5

    @property
    def step(self) -> int:
        self._owned.pop("first", None)
        return self._step


def test_a_slot_that_goes_while_progress_is_told_disturbs_nothing() -> None:
    owned: dict[str, Any] = {}
    owned["first"], owned["second"] = Moving(owned, 3), Moving(owned, 4)
    operations = SimpleNamespace(counts={"F": 2})
    executor = SimpleNamespace(owned=owned, shadowed={}, operations=operations)
    mailbox = SimpleNamespace(turns=7, peak_stash_bytes=1)
    device = SimpleNamespace(busy_s={"F": 1.0})
    told = progress_of(cast(Any, executor), cast(Any, mailbox), cast(Any, device))
    assert (told["step"], told["turns"], told["busy_s"]) == (4, 7, 1.0)
    assert list(owned) == ["second"]
