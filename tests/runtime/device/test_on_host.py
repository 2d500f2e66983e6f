"""Tensors that are kept on the host: a computation sees all of them on the device, part by part."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from bamboo.runtime.device import on_host
from bamboo.runtime.device.lagging import Lagging
from bamboo.runtime.device.on_host import compute_in_parts, moved

pytestmark = pytest.mark.timeout(60)


def doubled(kept: Sequence[dict[str, Tensor]]) -> list[list[int]]:
    """Doubles each first tensor and negates each second one; the places of each part."""
    parts = []

    def work(part: list[int], there: list[dict[str, Tensor]]) -> None:
        parts.append(part)
        for own in there:
            for kind, tensor in own.items():
                tensor.mul_(2 if kind == "first" else -1)

    compute_in_parts(Lagging(), kept, work)
    return parts


def test_each_part_is_within_the_limit_or_one_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(on_host, "PART_BYTES", 2 * (8 + 4) * 4)
    sizes = (4, 8, 100, 2, 6, 4, 1)
    kept = [{kind: torch.full((n,), float(n)) for kind in ("first", "second")} for n in sizes]
    before = [dict(own) for own in kept]
    assert doubled(kept) == [[0, 1], [2], [3, 4, 5], [6]]
    for n, own in zip(sizes, kept, strict=True):
        assert own["first"].tolist() == [2.0 * n] * n
        assert own["second"].tolist() == [-float(n)] * n
    for n, own in zip(sizes, before, strict=True):  # a sender of the state before still has it
        assert all(tensor.tolist() == [float(n)] * n for tensor in own.values())


def test_each_has_tensors_of_its_own() -> None:
    kept = [{"first": torch.ones(2)}, {}, {"first": torch.ones(3), "second": torch.ones(())}]
    assert doubled(kept) == [[0, 1, 2]]
    assert [{kind: x.tolist() for kind, x in own.items()} for own in kept] == [
        {"first": [2.0] * 2},
        {},
        {"first": [2.0] * 3, "second": -1.0},
    ]


def test_nothing_is_nothing() -> None:
    assert doubled([]) == []


def test_what_is_moved_is_whole_when_the_call_returns() -> None:
    tensors = [torch.arange(3.0), torch.ones(2)]
    for to_host in (True, False):
        found = moved(Lagging(), tensors, to_host=to_host)
        assert all(map(torch.equal, found, tensors))


def test_a_copy_that_nobody_waits_for_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Lagging, "settle", lambda device: None)
    kept = [{"first": torch.ones(3)}]
    doubled(kept)
    assert kept[0]["first"].isnan().all()
