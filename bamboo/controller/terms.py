"""What was settled before a run was started and holds for every launcher that it has.

Rule: all of it can be read from the run's folder, so a launcher needs nothing from the one before.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from bamboo.config.load import job_to_json
from bamboo.config.policy import policy_of
from bamboo.config.tree import JobConfig
from bamboo.coord.attested import attested_in
from bamboo.core.saving import KEPT
from bamboo.core.state import Attestation, Checkpoint, GridTime, Policy
from bamboo.errors import InputError
from bamboo.planner.plans.candidates import SAVING_KEYS, keys_of
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.planner.prices.refreshed import catalogue_json
from bamboo.runs import run_folder
from bamboo.runs.run_folder import REMEDY, Part, RunFolder, catalogue_of, job_of, promised
from bamboo.runs.run_status import strategy_of
from bamboo.study.planning import Planned
from bamboo.study.played_trace import TraceTerms
from bamboo.study.strategies import SYNCED_KEY
from bamboo.topology.strategy import AUTO, Strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The terms of a run."""

    job: JobConfig
    strategy: Strategy
    catalogue: Catalogue
    frame_bytes: int
    """No tensor on the wire is larger than everything that a node holds."""
    layers: tuple[int, ...]
    """Layers with parameters: what a checkpoint must contain."""
    cuts: tuple[tuple[int, ...], ...]
    """For each smaller number of stages that fits, and for the job's."""
    grids: tuple[GridTime, ...]
    """Every grid that the run may have, with the time of its steps."""
    spread: str
    """How the nodes are spread over the zones, as planned."""
    crossing_bytes: float
    """Bytes between zones in one step."""
    layer_bytes: tuple[int, ...]
    """Bytes of parameters and moments, by layer."""
    store_bytes_per_s: float
    """Between one node and the checkpoints; 0: sizes do not matter."""
    step_s: float
    """Of a calm step, as planned; 0: unknown."""
    zones: Mapping[str, int]
    """How many nodes each zone is to have; empty: all are in the zone of the cheapest pool."""
    unigram_entropy_nats: float | None
    trace: TraceTerms | None
    """How the trace in the run's folder is played, if the run is played on one."""
    from_step: int
    """The step of the checkpoint that it continues from; 0: it begins."""
    older: tuple[int, ...]
    """Steps of the checkpoints before it, oldest first, to try if that one is unusable."""
    detached: bool
    """It goes on when its launcher is gone."""
    part: Part
    """The newest part, which the launcher leads."""
    attested: Attestation | None
    """What the run computes with, where an earlier part of it has said that."""

    @property
    def policy(self) -> Policy:
        """The figures that decisions use."""
        return policy_of(
            self.job,
            self.cuts,
            grids=self.grids,
            spread=self.spread,
            layer_bytes=self.layer_bytes,
            store_bytes_per_s=self.store_bytes_per_s,
        )

    @property
    def checkpoints(self) -> tuple[Checkpoint, ...]:
        """The checkpoints that the run may be restored from as it begins."""
        known = (*self.older, self.from_step) if self.from_step else ()
        return tuple(Checkpoint(step=step, era=0) for step in known)[-KEPT:]


def save_terms(
    folder: RunFolder,
    job: JobConfig,
    planned: Planned,
    *,
    started_s: float,
    detached: bool,
    trace: TraceTerms | None = None,
    from_step: int = 0,
    older: tuple[int, ...] = (),
    part: Part | None = None,
) -> None:
    """Write `strategy.json`, the prices that the first part was planned with, and last
    `resolved.json`, which makes the folder a run. `started_s` is its launch; `part` is by default
    the first."""
    part = part or Part(number=1, started_s=started_s)
    run_folder.write_file(folder.strategy, planned.strategy.to_json() + "\n")
    if not folder.prices.exists():
        run_folder.write_file(folder.prices, catalogue_json(planned.catalogue))
    body = {
        "run": folder.id,
        "started_s": started_s,
        "part": part.number,
        "part_started_s": part.started_s,
        "led_before_s": part.led_before_s,
        "detached": detached,
        "planned": planned.promised(),
        "interval_is_open": planned.plan.given_every is None,
        "redundancy_is_open": bool(planned.redundancy_why),
        "saving": keys_of(planned.may_save),
        "frame_bytes": max(stage.total for stage in planned.plan.memory),
        "layers": planned.layers,
        "cuts": planned.cuts,
        "grids": [asdict(grid) for grid in planned.grids],
        "spread": planned.plan.spread,
        "crossing_bytes": 0.0
        if planned.plan.chosen is None
        else planned.plan.chosen.crossing_bytes,
        "layer_bytes": planned.layer_bytes,
        "store_bytes_per_s": planned.workload.store_bytes_per_s,
        "zones": dict(planned.zones),
        SYNCED_KEY: planned.synced.body(),
        "trace": None if trace is None else asdict(trace),
        "from_step": from_step,
        "older": older,
        "unigram_entropy_nats": planned.unigram_entropy_nats,
        "samples": planned.samples,
        "job": json.loads(job_to_json(job))["job"],
    }
    run_folder.write_json(folder.resolved, body)


def job_to_plan(folder: RunFolder) -> JobConfig:
    """The resolved job of a run for another plan. What the job left open before is open again: the
    interval between checkpoints, the redundancy, and what saves memory, since another grid may need
    another one."""
    job, body = job_of(folder), folder.read_json(folder.resolved)
    left = {key: said for key, said in body.get("saving", {}).items() if key in SAVING_KEYS}
    if body.get("redundancy_is_open", False):
        left["redundancy"] = AUTO
    job = replace(job, cluster=replace(job.cluster, **left))
    if not body.get("interval_is_open", False):
        return job
    return replace(job, checkpoint=replace(job.checkpoint, every_steps=AUTO))


def terms_kept(folder: RunFolder, terms: Terms, steps_done: int) -> dict[str, Any]:
    """What a receipt has of the terms: what was planned, and which segment has which steps."""
    segments = terms.strategy.semantics.listed(steps_done)
    return {"planned": promised(folder), "segments": segments}


def terms_of(folder: RunFolder) -> Terms:
    """The terms of a run. Raises InputError when a file is missing or of another release."""
    body: Mapping[str, Any] = folder.read_json(folder.resolved)
    entropy, trace = body.get("unigram_entropy_nats"), body.get("trace")
    try:
        zones = {str(zone): int(count) for zone, count in body.get("zones", {}).items()}
        played = None if trace is None else TraceTerms(**trace)
    except (TypeError, ValueError) as error:
        raise InputError(f"{folder.resolved} is damaged: {error}; {REMEDY}") from error
    strategy = strategy_of(folder)
    return Terms(
        job=job_of(folder),
        strategy=strategy,
        attested=attested_in(folder.path, strategy.semantics),
        catalogue=catalogue_of(folder),
        frame_bytes=int(body["frame_bytes"]),
        layers=tuple(map(int, body.get("layers", ()))),
        cuts=tuple(tuple(map(int, cut)) for cut in body["cuts"]),
        grids=tuple(GridTime(**grid) for grid in body.get("grids", ())),
        from_step=int(body["from_step"]),
        older=tuple(map(int, body.get("older", ()))),
        spread=str(body.get("spread", "one")),
        crossing_bytes=float(body.get("crossing_bytes") or 0.0),
        layer_bytes=tuple(map(int, body.get("layer_bytes", ()))),
        store_bytes_per_s=float(body.get("store_bytes_per_s", 0.0)),
        step_s=float((body.get("planned") or {}).get("step_s") or 0.0),
        zones=zones,
        unigram_entropy_nats=None if entropy is None else float(entropy),
        trace=played,
        detached=run_folder.is_detached(folder),
        part=run_folder.part_of(folder),
    )
