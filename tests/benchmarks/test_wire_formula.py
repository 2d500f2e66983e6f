"""What a step sends by the formula, and links that are as slow as a larger model finds them."""

import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bamboo.config.catalogue import load_gpus
from bamboo.ids import NodeId
from bamboo.ports import MessageKey
from bamboo.topology.grid import Grid
from benchmarks.measuring.wire_formula import slowness, wire_bytes, xl_slowness
from benchmarks.redundancy_overhead import (
    CUT,
    MODEL,
    boundary_bytes,
    gradient_bytes,
    like_xl_gbps,
    like_xl_ship,
)
from testbed.simulated import SimulatedTransport, World, builder_of
from tests.runtime import sorts_layers
from tests.runtime.test_interleavings import calmly, job


def sent(pipelines: int, stages: int, mode: str, virtual_nodes: int = 4) -> dict[str, float]:
    return wire_bytes(
        Grid(pipelines=pipelines, stages=stages),
        mode=mode,
        virtual_nodes=virtual_nodes,
        microbatches=8,
        boundary_bytes=10,
        gradient_bytes=[100] * stages,
    )


def test_one_pipeline_sends_boundaries_and_ships_to_shadows() -> None:
    calm = {"act": 240.0, "grad": 240.0, "partial": 0.0, "shard": 0.0}
    assert sent(1, 4, "off") == calm | {"ship": 0.0}
    for mode in ("stash", "gap", "eager"):
        assert sent(1, 4, mode) == calm | {"ship": 400.0}
    assert sent(1, 4, "full") == calm | {"grad": 480.0, "ship": 400.0}
    assert sent(1, 2, "full")["grad"] == 80.0  # its shadow is who sends it


def test_a_gradient_may_have_fewer_bytes_than_its_output() -> None:
    found = wire_bytes(
        Grid(pipelines=1, stages=4),
        mode="full",
        virtual_nodes=4,
        microbatches=8,
        boundary_bytes=10,
        gradient_bytes=[100] * 4,
        back_bytes=4,
    )
    assert (found["act"], found["grad"]) == (240.0, 2 * 96.0)


def test_pipelines_send_their_partials_and_the_shards() -> None:
    # One partial each: 4 pipelines x 3 others x a quarter of 400 bytes, once to sum, once back.
    found = sent(4, 4, "peer")
    assert (found["partial"], found["shard"], found["ship"]) == (1200.0, 1200.0, 0.0)
    # Of 8 virtual nodes three pipelines hold 3, 3 and 2: two, two and one subtrees.
    uneven = sent(3, 4, "peer", virtual_nodes=8)
    assert uneven["partial"] == pytest.approx(uneven["shard"] * 5 / 3)


def test_a_link_of_twice_the_speed_is_half_as_slow() -> None:
    slow, fast = (
        slowness(
            gbps=gbps,
            boundary_bytes=1e6,
            gradient_bytes=4e7,
            forward_s=0.01,
            backward_s=0.02,
            stages=4,
            microbatches=7,
        )
        for gbps in (4.0, 8.0)
    )
    assert (slow.boundary, slow.ship) == pytest.approx((0.2, 0.08 / 0.3))
    assert (fast.boundary, fast.ship) == pytest.approx((0.1, 0.04 / 0.3))


def test_the_tiny_model_finds_its_link_as_slow_as_gpt2_xl_does() -> None:
    """Boundaries exactly, by the link; gradients nearly, by the shape of the model."""
    for gbps in (2.5, 10.0):
        wanted = xl_slowness(gbps, load_gpus())
        found = boundary_bytes() * 8 / (like_xl_gbps(gbps) * 1e9) / 0.020
        assert found == pytest.approx(wanted.boundary)
        here, there = like_xl_ship(gbps)
        assert here == pytest.approx(there, rel=0.3)


def test_gpt2_xl_is_what_its_derivation_says() -> None:
    found = xl_slowness(2.5, load_gpus())
    assert 0.4 < found.boundary < 1.2
    assert 0.3 < found.ship < 1.0


def test_every_stage_of_the_tiny_model_has_its_block() -> None:
    block = 4 * (12 * MODEL.width**2 + 13 * MODEL.width)
    assert len(gradient_bytes()) == len(CUT) - 1
    assert min(gradient_bytes()) == block


@pytest.mark.parametrize(("pipelines", "mode"), [(1, "stash"), (2, "gap"), (2, "full")])
def test_frozen_parameters_are_neither_shipped_nor_exchanged(
    monkeypatch: pytest.MonkeyPatch, pipelines: int, mode: str
) -> None:
    """What a run sends, by the tensors' bytes, is what the formula says of the trained ones."""
    model = f"{Path(sorts_layers.__file__)}:mostly_frozen"
    settings = job(
        stages=3, pipelines=pipelines, virtual_nodes=4, redundancy=mode, replica_moments="device"
    )
    settings = replace(settings, model=replace(settings.model, model=model))
    found: Counter[str] = Counter()
    send = SimulatedTransport.send

    def counted(
        self: SimulatedTransport, node: NodeId, key: MessageKey, buffers: Any, *rest: Any
    ) -> bool:
        found[key.kind] += sum(buffer.data.nbytes for buffer in buffers)
        return send(self, node, key, buffers, *rest)

    monkeypatch.setattr(SimulatedTransport, "send", counted)
    world = World(settings, random.Random(1))
    world.run(until=lambda: False)
    calmly(world, settings)
    run = builder_of(settings)
    stages = [run.layout_of(run.strategy.placement.layers_of(p)) for p in range(3)]
    trained = [stage.trained_bytes for stage in stages]
    assert sum(stage.frozen_bytes for stage in stages) > 9 * sum(trained)
    expected = wire_bytes(
        run.strategy.placement.grid,
        mode=mode,
        virtual_nodes=4,
        microbatches=8 // pipelines,
        boundary_bytes=4 * settings.model.context * sorts_layers.WIDTH,
        gradient_bytes=trained,
    )
    steps = settings.train.steps
    for kind, size in expected.items():
        assert found[kind] == pytest.approx(steps * size, rel=0.03), kind
