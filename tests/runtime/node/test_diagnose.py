"""Where a number stops being finite: the first layer whose output is, else the last gradient."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import bamboo.runtime.node.diagnose
from bamboo.config.tree import ModelConfig
from bamboo.ids import NodeId
from bamboo.models import Tensors, run_layers
from bamboo.ports import MessageKey
from bamboo.runtime.node.diagnose import diagnose
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.wire.messages import Mailbox
from bamboo.topology.assignment import Assignment
from bamboo.topology.slots import Slot
from testbed.simulated import SimulatedTransport, Wires, builder_of
from tests.runtime.test_interleavings import job

STAGES = 3


class Ring:
    """Each slot on a node of its own, in a step whose forwards were all sent."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        pipelines: int = 1,
        stages: int = STAGES,
        model: ModelConfig | None = None,
    ) -> None:
        settings = job(stages=stages, pipelines=pipelines, virtual_nodes=2)
        builder = builder_of(replace(settings, model=model or settings.model))
        self.grid = builder.strategy.placement.grid
        slots = self.grid.slots()
        owners = tuple(NodeId(str(slot)) for slot in slots)
        assignment = Assignment(grid=self.grid, owners=owners, shadows=(None,) * len(slots))
        self.wires = Wires()
        self.transports = {n: SimulatedTransport(self.wires, n) for n in owners}
        self.mailboxes: dict[Slot, Mailbox] = {}
        self.runs: dict[Slot, SlotRun] = {}
        self.bad: tuple[int, int] = (-1, -1)
        for slot, node in zip(slots, owners, strict=True):
            self.transports[node].reconfigure(generation=1, members={n: n for n in owners})
            self.mailboxes[slot] = Mailbox(self.transports[node], node)
            self.mailboxes[slot].assign(assignment)
            self.runs[slot] = builder.build(slot, owner=True)
            self.runs[slot].exchange.gradient = [
                torch.ones_like(p) for p in self.runs[slot].stage.params
            ]
        monkeypatch.setattr(bamboo.runtime.node.diagnose, "run_layers", self._run_layers)
        monkeypatch.setattr(bamboo.runtime.node.diagnose, "DEADLINE_S", 0.02)
        monkeypatch.setattr(bamboo.runtime.node.diagnose, "POLL_S", 0.0)

    def _run_layers(
        self, layers: Sequence[tuple[int, nn.Module]], x: Tensors, *, seed: int, **at: int
    ) -> Tensors:
        out = x
        for one in layers:
            out = run_layers([one], out, seed=seed, **at)
            if (one[0], at["microbatch"]) == self.bad:
                last = max(i for i, t in enumerate(out) if t.is_floating_point())
                out = (*out[:last], out[last] * float("nan"), *out[last + 1 :])
        return out

    def forward(self) -> None:
        """All stages have sent their outputs of the step."""
        for slot, run in self.runs.items():
            for local, microbatch in enumerate(run.microbatches):
                x = (
                    run.stage.input_of(0, microbatch)
                    if run.stage.is_first
                    else self._sent(run, local)
                )
                with torch.no_grad():
                    y = self._run_layers(
                        run.stage.layers, x, seed=run.stage.seed, step=0, microbatch=microbatch
                    )
                if not run.stage.is_last:
                    to = self.grid.protected(slot)
                    key = MessageKey(kind="act", to=to, source=slot, step=0, index=local)
                    self.mailboxes[slot].post(key, y)
        self.carry()

    def _sent(self, run: SlotRun, local: int) -> Tensors:
        before = self.grid.protector(run.slot)
        key = MessageKey(kind="act", to=run.slot, source=before, step=0, index=local)
        message = self.mailboxes[before].kept(key)
        assert message is not None
        return message.tensors

    def carry(self) -> None:
        for link in self.wires.busy():
            self.transports[link[1]].arrived.extend(self.wires.queues[link])
            self.wires.queues[link].clear()

    def ask(self, *slots: Slot) -> tuple[int, str] | None:
        """Diagnose on the node of the first of these slots, which owns them all."""
        found = diagnose(self.mailboxes[slots[0]], [self.runs[s] for s in slots], lambda: False)
        self.carry()
        return found

    def ask_all(self, rounds: int = 3) -> set[tuple[int, str]]:
        """Every node asks, in the order of the slots; again, since here nobody waits for long."""
        out = set()
        for _ in range(rounds):
            for slot in self.grid.slots():
                found = self.ask(slot)
                if found is not None:
                    out.add(found)
            for mailbox in self.mailboxes.values():
                mailbox._taken.clear()
        return out


def slot(stage: int, pipeline: int = 0) -> Slot:
    return Slot(pipeline=pipeline, stage=stage)


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_the_first_output_that_is_not_finite_is_named(
    monkeypatch: pytest.MonkeyPatch, layer: int
) -> None:
    ring = Ring(monkeypatch)
    ring.bad = (layer, 7)
    ring.forward()
    for run in ring.runs.values():
        run.exchange.gradient[-1].fill_(float("nan"))
    assert ring.ask_all() == {(layer, "output of microbatch 7")}


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_of_several_tensors_each_is_looked_at(monkeypatch: pytest.MonkeyPatch, layer: int) -> None:
    example = Path(__file__).parents[3] / "examples" / "encoder_decoder.py"
    ring = Ring(
        monkeypatch,
        model=ModelConfig(model=f"{example}:build", layers=1, width=8, heads=2, context=8),
    )
    ring.bad = (layer, 2)
    ring.forward()
    assert ring.ask_all() == {(layer, "output of microbatch 2")}


def test_an_output_of_another_pipeline_counts_before_a_gradient_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ring = Ring(monkeypatch, pipelines=2)
    ring.bad = (1, 6)
    ring.forward()
    for run in ring.runs.values():
        run.exchange.gradient[-1].fill_(float("nan"))
    assert ring.ask_all() == {(1, "output of microbatch 6")}


@pytest.mark.parametrize("pipelines", [1, 2])
def test_else_the_last_gradient_is_named(monkeypatch: pytest.MonkeyPatch, pipelines: int) -> None:
    ring = Ring(monkeypatch, pipelines)
    ring.forward()
    for at, run in ring.runs.items():
        if at.stage <= 1:
            run.exchange.gradient[-1].fill_(float("inf"))
    run = ring.runs[slot(1)]
    layer, name = run.stage.names[-1].split(".", 1)
    assert ring.ask_all() == {(int(layer), f"gradient of {name}")}


@pytest.mark.parametrize("pipelines", [1, 2])
def test_where_one_stage_has_the_whole_model(
    monkeypatch: pytest.MonkeyPatch, pipelines: int
) -> None:
    ring = Ring(monkeypatch, pipelines, stages=1)
    ring.bad = (2, 7)
    assert ring.ask_all() == {(2, "output of microbatch 7")}
    ring.bad = (-1, -1)
    for run in ring.runs.values():
        run.exchange.gradient[0].fill_(float("inf"))
    layer, name = ring.runs[slot(0)].stage.names[0].split(".", 1)
    assert ring.ask_all() == {(int(layer), f"gradient of {name}")}


def test_a_node_with_two_stages_asks_for_both(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring(monkeypatch)
    for stage in (1, 2):
        ring.mailboxes[slot(stage)] = ring.mailboxes[slot(1)]
    merged = ring.mailboxes[slot(1)].assignment.replace(owners={slot(2): NodeId("0.1")}, shadows={})
    for mailbox in ring.mailboxes.values():
        mailbox.assign(merged)
    ring.bad = (3, 2)
    ring.forward()
    assert ring.ask(slot(0)) is None
    found = ring.ask(slot(2), slot(1))
    assert found == (3, "output of microbatch 2"), "in whatever order its slots are given"


def test_without_the_others_messages_it_gives_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring(monkeypatch)
    assert ring.ask(slot(1)) is None


def test_it_stops_when_somebody_else_has_found_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ring = Ring(monkeypatch)
    monkeypatch.setattr(bamboo.runtime.node.diagnose, "DEADLINE_S", 1e9)
    assert diagnose(ring.mailboxes[slot(1)], [ring.runs[slot(1)]], lambda: True) is None
