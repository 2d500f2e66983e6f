"""A node's part in checkpoints: stores its stages behind the training, completes one, reads one.

Rules. (1) The training pays for one copy in memory at the boundary and for nothing else; a save
that would have to wait for the one before is given up, and the node reports it. (2) A failure to
store is reported and ends nothing. (3) What is read is trusted only if its digest matches, and so
is what already exists where something is to be written. (4) Objects of other semantics are not
touched. (5) Old checkpoints are deleted once the run's state names a newer one and no
reconfiguration is under way, because a restore begins with what the state names.
"""

import contextlib
import math
import sys
import tempfile
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from bamboo.checkpoint.catalogue import described, load_tensors, steps
from bamboo.checkpoint.manifest import (
    CONSTANT,
    MANIFEST,
    HashAt,
    Manifest,
    Shard,
    folder_of,
    hash_at,
    layer_of,
    shard_name,
    shards_from_json,
    shards_to_json,
)
from bamboo.checkpoint.retention import choose, delete, sweep
from bamboo.checkpoint.shards import commit_or_replace, no_scratch, save_constant, save_shard
from bamboo.config.tree import CheckpointConfig
from bamboo.core.events import CheckpointDone, CheckpointFailed, ShardSaved
from bamboo.core.keep import SLACK
from bamboo.errors import NotAsWritten, StorageFull, StorageUnavailable
from bamboo.ids import NodeId, RunId
from bamboo.ports import ObjectStore
from bamboo.runtime.device.staging import HOST
from bamboo.runtime.step.slot_run import SlotRun
from bamboo.runtime.wire.backlog import Backlog
from bamboo.runtime.wire.outbox import Outbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Save:
    """A stage to be stored as it was before `step`."""

    step: int
    era: int
    stage: int
    tensors: Mapping[str, Tensor]
    constant: Collection[str] = ()
    """Of these tensors, those that never change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """A checkpoint to be completed, because all its `stages` are stored."""

    step: int
    era: int
    stages: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tidy:
    """Old checkpoints to be deleted: every node knows that the one of `step` is complete."""

    step: int
    era: int


class Checkpoints:
    """The checkpoints of a run, as one node writes and reads them."""

    def __init__(
        self,
        *,
        me: NodeId,
        run: RunId,
        semantic_hash: HashAt,
        objects: ObjectStore,
        config: CheckpointConfig,
        last_step: int,
        scratch: Path,
        outbox: Outbox,
        layers: Collection[int] = (),
    ) -> None:
        """`last_step`: the state before it is not stored, because no step follows and `final/`
        keeps it. `layers`: the layers that have parameters, where they are known; no checkpoint
        that lacks one of them is completed."""
        self._layers = layers
        self._me = me
        self._run = run
        self._semantic_hash = semantic_hash
        self._objects = objects
        self._config = config
        self._scratch = scratch
        self._last_step = last_step
        self._outbox = outbox
        self.backlog: Backlog[Save | Complete | Tidy] = Backlog()
        self._constant: dict[int, Shard] = {}
        """By layer: what never changes of it, once it is stored."""
        self._completed: set[int] = set()
        """Steps whose checkpoint was completed here and is not in the state yet."""
        self._took_s = 0.0
        """How long storing the last shard took."""
        self._newest = 0
        """No checkpoint before this step, or at it, is wanted any more."""

    # ------------------------------------------------------------------ by the trainer

    def boundary(self, run: SlotRun, era: int, *, left_s: float = math.inf) -> None:
        """An owned slot stands before a step, for the first time or with its new owner. Copy and
        store it if this is a step to keep and this pipeline is the one that stores the stage.
        `left_s`: seconds until all nodes stop to store state that must not be lost, which would
        wait for this."""
        every, slot = self._config.interval, run.slot
        mine = slot.stage % run.plan.grid.pipelines == slot.pipeline
        if not every or not mine or run.step % every:
            return
        if not self._newest < run.step < self._last_step:
            return
        if left_s < SLACK * self._took_s:
            return
        if self._busy(era, run.step):
            reason = "the one before is still being written; take a larger checkpoint.every_steps"
            self._failed(run.step, era, reason)
            return
        # On the host: until it is written, it would take half of a stage's memory of a GPU. What
        # never changes is not copied where it lies there already.
        constant = run.stage.untrained.constant
        tensors = {n: x.to(HOST, copy=n not in constant) for n, x in run.tensors().items()}
        self.backlog.put(
            Save(step=run.step, era=era, stage=slot.stage, tensors=tensors, constant=constant)
        )

    def keep(
        self,
        step: int,
        era: int,
        part: int,
        tensors: Mapping[str, Tensor],
        constant: Collection[str],
    ) -> None:
        """Store state that must not be lost; nothing of it changes, because no step is taken."""
        self.backlog.put(Save(step=step, era=era, stage=part, tensors=tensors, constant=constant))

    def complete(self, step: int, era: int, stages: int) -> None:
        """Write the manifest: all stages are stored."""
        self.backlog.put(Complete(step=step, era=era, stages=stages))

    def known(self, listed: Collection[int], era: int) -> None:
        """Note that the state names the checkpoints of these steps and that all nodes train."""
        self._newest = max(listed, default=0)
        for step in listed:
            if step in self._completed:
                self._completed.discard(step)
                self.backlog.put(Tidy(step=step, era=era))

    def load(self, step: int, layers: frozenset[int]) -> Mapping[str, Tensor]:
        """Parameters and moments of these layers as they were before `step`.

        It is called in a thread of its own. Raises NotAsWritten when they are missing or not what
        was written, StorageFull when `scratch` cannot be used, StorageUnavailable when the store is
        away.
        """
        manifest, why = described(
            self._objects, step, run=self._run, semantic_hash=self._semantic_hash
        )
        try:
            if why or manifest is None:
                raise ValueError(why)
            names = [n for shard in manifest.shards for n in shard.tensors if layer_of(n) in layers]
        except ValueError as error:
            raise NotAsWritten(f"the checkpoint of step {step} {error}") from error
        with self._scratch_folder() as folder:
            try:
                return load_tensors(self._objects, manifest, names, scratch=Path(folder))
            except (StorageFull, OSError) as error:  # only the scratch folder is written to
                raise no_scratch(self._scratch, error) from error

    def _busy(self, era: int, step: int) -> bool:
        """Whether anything of an earlier step, or of an era that is over, is yet to be written."""
        return any(
            (item.era, item.step) < (era, step)
            for item in self.backlog.undone()
            if not isinstance(item, Tidy)
        )

    # ------------------------------------------------------------------ behind it

    def work(self, stop: threading.Event) -> None:
        """The thread's body: store items until `stop` is set and all is done."""
        self.backlog.work(self.write, stop)

    def write(self, item: Save | Complete | Tidy) -> None:
        """Do one item and report the outcome."""
        try:
            if isinstance(item, Save):
                self._save(item)
            elif isinstance(item, Complete):
                self._complete(item)
            else:
                self._forget_old(item.step)
        except (StorageUnavailable, OSError, ValueError) as error:
            if not isinstance(item, Tidy):
                self._failed(item.step, item.era, str(error))
                return
            # The newer checkpoint is complete anyway; the next one tries again.
            with contextlib.suppress(OSError):  # the log's disk may be full
                sys.stderr.write(f"old checkpoints cannot be deleted: {error}\n")

    def _save(self, item: Save) -> None:
        begun_s = time.monotonic()
        constant: dict[int, dict[str, Tensor]] = {}
        for name in item.constant:
            constant.setdefault(layer_of(name), {})[name] = item.tensors[name]
        with self._scratch_folder() as folder:
            shard = save_shard(
                self._objects,
                {n: tensor for n, tensor in item.tensors.items() if n not in item.constant},
                step=item.step,
                generation=item.era,
                stage=item.stage,
                scratch=Path(folder),
            )
            there = self._objects.sizes(CONSTANT) if constant else {}
            for layer, tensors in constant.items():
                known = self._constant.get(layer)
                if known is None or there.get(known.name) != known.bytes:  # it is lost
                    self._constant[layer] = save_constant(
                        self._objects, layer, tensors, scratch=Path(folder)
                    )
        shards = [shard, *(self._constant[layer] for layer in sorted(constant))]
        self._objects.put_new(_description(shard.name), shards_to_json(shards).encode())
        self._took_s = time.monotonic() - begun_s
        self._outbox.event(
            ShardSaved(node=self._me, step=item.step, era=item.era, stage=item.stage)
        )

    def _complete(self, item: Complete) -> None:
        shards: list[Shard] = []
        for stage in range(item.stages):
            name = shard_name(step=item.step, generation=item.era, stage=stage)
            text = self._objects.get(_description(name))
            if text is None:
                raise StorageUnavailable(f"{name} was stored and is gone")
            shards += _described(text, name)
        manifest = Manifest(
            run=self._run,
            semantic_hash=hash_at(self._semantic_hash, item.step),
            step=item.step,
            generation=item.era,
            created_at_s=time.time(),
            shards=tuple(shards),
        )
        if odd := manifest.odd_layers(self._layers):
            raise StorageUnavailable(f"what was stored before step {item.step} {odd}")
        commit_or_replace(self._objects, manifest, layers=self._layers)
        self._completed.add(item.step)
        self._outbox.event(CheckpointDone(node=self._me, step=item.step, era=item.era))

    def _forget_old(self, newest: int) -> None:
        created: dict[int, float] = {}
        torn, foreign = [], []
        for step in steps(self._objects):
            text = self._objects.get(f"{folder_of(step)}/{MANIFEST}")
            try:
                found = None if text is None else Manifest.from_json(text)
            except ValueError:
                found = None  # it cannot be restored
            if found is None:
                torn.append(step)
            elif (found.run, found.semantic_hash) == (
                self._run,
                hash_at(self._semantic_hash, found.step),
            ):
                created[step] = found.created_at_s
            else:
                foreign.append(step)
        for step in choose(
            created_at_s=created,
            torn=torn,
            newest_good=newest,
            keep=self._config.keep,
            keep_s=self._config.keep_hours * 3600,
            now_s=time.time(),
        ):
            delete(self._objects, step)
        sweep(self._objects, before=newest, spare=foreign)

    def _failed(self, step: int, era: int, reason: str) -> None:
        self._outbox.event(CheckpointFailed(node=self._me, step=step, era=era, reason=reason))

    def _scratch_folder(self) -> tempfile.TemporaryDirectory[str]:
        """A folder of this thread's own, because two runs of one machine may share the scratch
        folder. Raises StorageFull."""
        try:
            self._scratch.mkdir(parents=True, exist_ok=True)
            return tempfile.TemporaryDirectory(prefix="bamboo-", dir=self._scratch)
        except OSError as error:
            raise no_scratch(self._scratch, error) from error


def _described(text: bytes, name: str) -> tuple[Shard, ...]:
    """A shard as its writer described it, and what is constant in its layers. Raises
    StorageUnavailable, saying what does not fit."""
    where = _description(name)
    try:
        shards = shards_from_json(text)
    except ValueError as error:
        raise StorageUnavailable(f"{where} is not what was written: {error}") from error
    if shards[0].name != name:
        raise StorageUnavailable(f"{where} is not what was written: it is about {shards[0].name}")
    return shards


def _description(shard: str) -> str:
    """The name of the object that describes a shard."""
    return shard.removesuffix(".safetensors") + ".json"
