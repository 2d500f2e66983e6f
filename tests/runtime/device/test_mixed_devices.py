"""No operation of a run takes tensors of host and device together, and numbers are read from the
device in named places only: shown on tensors without memory, for the whole life of a run."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import read_final, write_manifest
from bamboo.config.resolve import resolve
from bamboo.config.tree import CheckpointConfig, JobConfig, ModelConfig
from bamboo.core.events import FaultScope
from bamboo.core.state import Outcome
from bamboo.ids import NodeId, RunId
from bamboo.models import Gradients, Tensors, run_back
from bamboo.ports import MessageKey
from bamboo.runtime.check import reference
from bamboo.runtime.check.verify import compare_tensors
from bamboo.runtime.device import staging
from bamboo.runtime.node import arrival, new_layout
from bamboo.runtime.node.arrival import warm_up
from bamboo.runtime.node.faults import scope_of
from bamboo.runtime.node.worker import keep_in_folder
from bamboo.runtime.optim.optimizer import Optimizer
from bamboo.runtime.optim.state import OptimizerState
from bamboo.runtime.state.checkpoints import Checkpoints
from bamboo.runtime.state.restore import Reading
from bamboo.runtime.step import bucket_sums, exchange
from bamboo.runtime.step.slots import SlotBuilder
from bamboo.runtime.wire import messages
from bamboo.runtime.wire.chunks import Copying
from bamboo.runtime.wire.outbox import Outbox
from testbed import simulated
from testbed.on_meta import META, Guard, OnMeta, Refused
from testbed.simulated import SimulatedTransport, World, builder_of
from testbed.waiting import wait_until
from tests.runtime.test_interleavings import job, longer
from tests.runtime.test_layouts import go, policy_of

pytestmark = pytest.mark.timeout(120)
SEED = 3
STEPS = 6


@pytest.fixture
def guard(monkeypatch: pytest.MonkeyPatch) -> Iterator[Guard]:
    """All nodes compute on meta, and every operation is looked at."""
    entered = Guard()
    monkeypatch.setattr(simulated, "device_of", lambda *_: OnMeta(entered))
    with entered:
        yield entered


class Disk:
    """Where the nodes of a run keep checkpoints and the final state."""

    def __init__(self, folder: Path, settings: JobConfig) -> None:
        self.final, self.settings = folder / "final", settings
        self.store = DirectoryStore(folder / "checkpoints")
        self.scratch = folder / "scratch"
        self.kept: list[Checkpoints] = []
        self.saved_from: set[str] = set()
        """Where the copies lie that wait to be written."""

    def of_node(self, me: NodeId, outbox: Outbox) -> Mapping[str, Any]:
        checkpoints = Checkpoints(
            me=me,
            run=RunId("sim"),
            semantic_hash=lambda step: f"of step {step}",
            objects=self.store,
            config=CheckpointConfig(every_steps=2),
            last_step=self.settings.train.steps,
            scratch=self.scratch,
            outbox=outbox,
        )
        self.kept.append(checkpoints)
        return {"checkpoints": checkpoints, "keep_final": keep_in_folder(self.final)}

    def work(self) -> bool:
        """Do what the threads would; False."""
        for one in self.kept:
            while undone := one.backlog.undone():
                tensors = getattr(undone[0], "tensors", {})
                self.saved_from |= {tensor.device.type for tensor in tensors.values()}
                one.write(undone[0])
                one.backlog._undone.popleft()
        return False


@pytest.fixture
def kinds(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The kinds of the messages with tensors that are sent."""
    seen: set[str] = set()
    send = SimulatedTransport.send

    def noted(
        self: SimulatedTransport, node: NodeId, key: MessageKey, buffers: Sequence[Any], *rest: Any
    ) -> bool:
        seen.update({key.kind} if buffers else ())
        return send(self, node, key, buffers, *rest)

    monkeypatch.setattr(SimulatedTransport, "send", noted)
    return seen


@pytest.mark.parametrize(
    "replica_moments", [pytest.param("device", marks=pytest.mark.full), "host"]
)
def test_a_run_that_grows_and_loses_nodes(
    guard: Guard, kinds: set[str], replica_moments: str
) -> None:
    draw = random.Random(SEED)
    settings = job(
        stages=2,
        virtual_nodes=4,
        tied=True,
        redundancy="full",
        steps=STEPS,
        replica_moments=replica_moments,
    )
    world = World(settings, draw, standbys=3, policy=policy_of(settings, 2))
    for node in world.standbys:
        world.join(node)
    world.run(until=lambda: world.state.grid.pipelines == 2 and not world.state.reconfiguration)
    world.kill(list(world.nodes)[1])
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    assert sorted(world.losses()) == list(range(STEPS))
    for node in world.nodes.values():
        executor = node.trainer.executor
        for run in (*executor.owned.values(), *executor.shadowed.values()):
            here = not run.owner and replica_moments == "host"
            moments = [x for own in run.kept.tensors.values() for x in own.values()]
            assert {x.device.type for x in moments} == {"cpu" if here else "meta"}
    assert kinds >= {"act", "grad", "partial", "shard", "tie", "ship", "state", "copy", "follow"}
    done = {kind for node in world.nodes.values() for kind in node.trainer.device.kinds}
    assert done == {"F", "B", "FR", "BR", "X", "S", "R"}
    on_both = {"runtime/wire/chunks.py _joined"} if replica_moments == "host" else set()
    assert guard.read.keys() == on_both | {
        "runtime/step/norm.py squares",
        "runtime/step/evaluation.py settled",
    }


PLAINLY = """
def plainly(job):
    from bamboo.models import Workload
    from bamboo.models.gpt import token_loss
    return Workload(layers=tuple(build(job)), loss=token_loss, plain=True)
"""


def test_several_tensors_between_stages(guard: Guard, kinds: set[str], tmp_path: Path) -> None:
    example = Path(__file__).parents[3] / "examples" / "encoder_decoder.py"
    (tmp_path / "m.py").write_text(example.read_text(encoding="utf-8") + PLAINLY, encoding="utf-8")
    model = ModelConfig(
        model=f"{tmp_path}/m.py:plainly", layers=1, width=8, heads=2, context=8, dropout=0.1
    )
    settings = replace(job(stages=3, redundancy="full", recompute="layer"), model=model)
    world = World(settings, random.Random(SEED))
    world.run_to_a_step()
    world.kill(list(world.nodes)[1])
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    assert kinds >= {"act", "grad", "ship"}
    assert guard.read.keys() == {
        "runtime/step/norm.py squares",
        "runtime/step/evaluation.py settled",
    }


class ReadAtOnce(Reading):
    """No node waits for it by turns, of which this run has none to spare."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        wait_until(lambda: self.poll() is not None, what="read", timeout_s=30)


def test_a_run_that_is_restored_and_verified(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(new_layout, "Reading", ReadAtOnce)
    draw = random.Random(SEED)
    settings = job(stages=2, steps=STEPS, check_replicas=True, recompute="layer")
    disk = Disk(tmp_path, settings)
    policy = policy_of(settings, 1, checkpoint_every=2)
    world = World(settings, draw, standbys=2, policy=policy, storage=disk.of_node)
    world.run(until=lambda: disk.work() or bool(world.state.checkpoints))
    for node in list(world.nodes)[:2]:
        world.kill(node)
    world.run(until=lambda: disk.work() or not world.unreported)
    for node in world.standbys:
        world.join(node)
    world.run(until=disk.work)
    assert world.state.outcome is Outcome.DONE, world.report()
    assert any("restored from the checkpoint" in reason for reason in world.reasons)
    write_manifest(disk.final, stages=2, step=STEPS)
    monkeypatch.setattr(reference, "place_of", lambda _: META)
    whole = builder_of(settings)
    calm = reference.CalmRun(resolve(settings), whole.workload, whole.dataset)
    losses = {step: calm.step().hex() for step in range(STEPS)}
    assert losses == world.losses()
    assert compare_tensors(calm, read_final(disk.final).tensors) == {}
    assert "runtime/node/records.py run_hash" in guard.read
    assert disk.saved_from == {"cpu"}, "no second copy of a stage lies on the device"


def test_state_that_is_still_to_be_sent_when_it_changes_waits_on_the_host(guard: Guard) -> None:
    copying = Copying(3 * 4)
    copying.begin([torch.empty(5, device=META), torch.empty(2, device=META)], 0)
    assert (first := copying.chunk(0)) is not None
    copying.freeze()
    rest = [part for number in (1, 2) if (part := copying.chunk(number)) is not None]
    assert first.is_meta, "what is asked for before is not copied"
    assert [(len(part), part.device.type) for part in rest] == [(12, "cpu"), (4, "cpu")]


def on_meta(guard: Guard, settings: JobConfig) -> SlotBuilder:
    builder = builder_of(settings)
    builder.device = OnMeta(guard)
    return builder


def test_a_node_loads_the_kernels_of_a_whole_step_before_it_joins(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: set[str] = set()
    look = Guard.__torch_dispatch__

    def noted(self: Guard, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        done.add(func._overloadpacket.__name__)
        return look(self, func, types, args, kwargs)

    monkeypatch.setattr(Guard, "__torch_dispatch__", noted)
    settings = job(stages=2, redundancy="stash", steps=2)
    warm_up(on_meta(guard, settings))
    warmed, _ = set(done), done.clear()
    world = World(settings, random.Random(SEED))
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE
    # Of the rest, none computes; `stack` gathers numbers that are read.
    assert done - warmed <= {"stack", "clone", "view", "ones_like", "select", "slice", "div"}
    assert {"_fused_adamw_", "embedding", "add_", "nll_loss_backward"} <= warmed


def test_a_device_that_is_full_at_the_start_is_a_fault_of_the_device(
    guard: Guard, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    builder = on_meta(guard, job(stages=2))
    monkeypatch.setattr(arrival, "run_layers", full)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        warm_up(builder)
    assert scope_of(caught.value) is FaultScope.DEVICE

    def raises(*_: Any, **__: Any) -> None:
        raise ValueError("a layer of the user's")

    monkeypatch.setattr(arrival, "run_layers", raises)
    warm_up(builder)


# ---------------------------------------------------------------- planted faults


def data_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens stay on the host."""
    monkeypatch.setattr(staging.DataOnDevice, "microbatch", lambda x, *at: x._data.microbatch(*at))


def messages_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is received stays on the host."""
    monkeypatch.setattr(OnMeta, "put", lambda _, tensors, *__: tuple(tensors))
    monkeypatch.setattr(
        staging.DataOnDevice,
        "microbatch",
        lambda x, *at: [
            tuple(torch.empty_like(t, device=META) for t in side)
            for side in x._data.microbatch(*at)
        ],
    )


def moments_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """The moments lie on the host."""
    monkeypatch.setattr(
        Optimizer,
        "new_state",
        lambda own, params, **__: OptimizerState(
            tensors={
                name: {kind: torch.zeros(shape) for kind, shape in own.state(p.shape).items()}
                for name, p in params.items()
            }
        ),
    )


def room_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """The room for a new replica lies on the host."""
    room = SlotBuilder.room_for
    monkeypatch.setattr(
        SlotBuilder,
        "room_for",
        lambda x, layers: {n: torch.empty(t.shape) for n, t in room(x, layers).items()},
    )


def nothing_staged(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message leaves without a copy on the host."""
    monkeypatch.setattr(messages.Mailbox, "_on_host", lambda _, message, **_at_rest: message)


def a_loss_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each backward reads its loss."""

    def reads(outputs: Tensors, gradients: Gradients | None) -> None:
        if gradients is None:
            float(outputs[0])
        run_back(outputs, gradients)

    monkeypatch.setattr("bamboo.runtime.step.stage.run_back", reads)


def a_norm_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The squares are read one by one."""
    monkeypatch.setattr(exchange, "squares", lambda grads: [g.square().sum().item() for g in grads])


def gradients_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch depends on a number of the device."""
    add = bucket_sums.added

    def looks(left: list[Tensor], right: list[Tensor]) -> list[Tensor]:
        return right if bool((left[0] == 0).all()) else add(left, right)

    monkeypatch.setattr(bucket_sums.TreeSum, "__init__", _summing_by(looks))


def _summing_by(add: Callable[..., Any]) -> Callable[..., None]:
    begin = bucket_sums.TreeSum.__init__
    return lambda self, leaves, _: begin(self, leaves, add)


@pytest.mark.parametrize(
    ("plant", "says"),
    [
        (data_stay, "embedding.*takes tensors of the host and of the device"),
        (messages_stay, "takes tensors of the host and of the device at models/"),
        (moments_stay, "takes tensors of the host and of the device"),
        (room_stays, "takes tensors of the host and of the device"),
        (nothing_staged, "waits for the device to read from it at runtime/wire/frames.py"),
        (a_loss_is_read, "waits for the device to read"),
        (a_norm_is_read, "waits for the device to read"),
        (gradients_are_compared, "waits for the device to read"),
    ],
    ids=lambda x: getattr(x, "__name__", ""),
)
def test_the_guard_sees(
    guard: Guard,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[pytest.MonkeyPatch], None],
    says: str,
) -> None:
    plant(monkeypatch)
    draw = random.Random(SEED)
    settings = longer(job(stages=2, virtual_nodes=4, redundancy="stash"), 3)
    world = World(settings, draw, standbys=1, policy=policy_of(settings, 1))
    with pytest.raises(Refused, match=says):
        _with_a_loss(world)


def _with_a_loss(world: World) -> None:
    go(world)
    world.kill(list(world.nodes)[1])
    world.join(world.standbys[0])
    world.run(until=lambda: False)


def test_moments_of_a_replica_stay_on_the_host_while_its_node_computes_two_stages(
    guard: Guard,
) -> None:
    settings = job(
        stages=3, redundancy="stash", steps=STEPS, replica_moments="host", patience_s=1e6
    )
    world = World(settings, random.Random(SEED), standbys=0, policy=policy_of(settings, 1))
    world.run(until=lambda: world.state.assignment is not None and bool(world.losses()))
    world.kill(list(world.nodes)[1])
    world.run(until=lambda: False)
    assert world.state.outcome is Outcome.DONE, world.report()
    (merged,) = (x for x in world.nodes.values() if len(x.trainer.executor.owned) == 2)
    places = {
        (run.beside, x.device.type)
        for run in merged.trainer.executor.owned.values()
        for kept in run.kept.tensors.values()
        for x in kept.values()
    }
    assert places == {(False, "meta"), (True, "cpu")}
