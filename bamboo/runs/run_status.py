"""The state of a run, seen from outside: from its store while it lives, otherwise from its files.

A run ends by leaving a receipt. A run without a receipt whose store does not answer was killed
together with its launcher. It is called `lost`, and its metrics say how far it came.
"""

import time
from pathlib import Path
from typing import Any

from bamboo import wiring
from bamboo.config.tree import JobConfig
from bamboo.coord.codec import STREAM, ValueRecord
from bamboo.coord.follow import Follower, all_records
from bamboo.core.state import initial_state
from bamboo.disk import full_disk
from bamboo.errors import InputError, StoreUnavailable, UnreadableRecord
from bamboo.ports import Store
from bamboo.runs import lock
from bamboo.runs.pause import with_kill_stamp
from bamboo.runs.progress import (
    Progress,
    status_body,
    with_beat,
    with_decision,
    with_evaluation,
    with_metric,
)
from bamboo.runs.run_folder import REMEDY, RunFolder, is_detached, job_of, part_of, started_text
from bamboo.runs.stamps import kill_stamps_s
from bamboo.runs.store_records import Hearing
from bamboo.telemetry.records import read_evaluations, read_metrics
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Strategy
from bamboo.topology.sync import Sync, sync_of

LOST = "lost"
SILENT = "silent"
"""Its store does not answer, or has ended, and it has a launcher."""
DAMAGED = "damaged"


def strategy_of(folder: RunFolder) -> Strategy:
    """The strategy of a run. Raises InputError when its file is missing or damaged."""
    try:
        return Strategy.from_json(folder.read_text(folder.strategy))
    except ValueError as error:
        raise InputError(f"{folder.strategy} is damaged: {error}; {REMEDY}") from error


def newest_sync_of(folder: RunFolder) -> Sync | None:
    """The strategy of synchronisation that a search of the run chose last; None where none did.
    Raises InputError for a damaged file."""
    if not folder.newest_sync.exists():
        return None
    try:
        return sync_of(folder.read_json(folder.newest_sync).get("sync"))
    except ValueError as error:
        raise InputError(f"{folder.newest_sync} is damaged: {error}; remove it") from error


def empty_progress(folder: RunFolder, job: JobConfig, *, started_s: float) -> Progress:
    """A run before its first decision."""
    grid = Grid(pipelines=job.cluster.pipelines, stages=job.cluster.stages)
    return Progress(
        run=folder.id,
        steps=job.train.steps,
        tokens_per_step=job.train.batch * job.tokens_per_sample,
        samples_per_step=job.train.batch,
        unit=job.counted,
        state=initial_state(run=folder.id, grid=grid, redundancy=job.cluster.redundancy),
        started_at_s=started_s,
        now_s=started_s,
        modelled=job.cloud.provider == "local",
    )


def begun_progress(folder: RunFolder, job: JobConfig) -> Progress:
    """The progress at which this part of the run begins: none, or that of the earlier parts, whose
    steps this part's store does not have."""
    part = part_of(folder)
    before = empty_progress if part.number == 1 else progress_before
    return before(folder, job, started_s=part.started_s)


def status_of(folder: RunFolder) -> dict[str, Any]:
    """What `bamboo status --json` prints for this run, whatever its state. `ended` is true once its
    receipt is written. Before that its members may have finished, but its instances, its final
    state and its bill are not settled yet."""
    if (ended := _ended(folder)) is not None:
        return ended
    return {"ended": False} | _standing(folder)


def _ended(folder: RunFolder) -> dict[str, Any] | None:
    if not folder.receipt.exists():
        return None
    body: dict[str, Any] = folder.read_json(folder.receipt)["status"]
    body["ended"] = True  # in place: a copy would not say which field a damaged receipt lacks
    return body


def _standing(folder: RunFolder) -> dict[str, Any]:
    if folder.starting():
        return status_body(begun_progress(folder, job_of(folder)))
    endpoint = folder.live_endpoint()
    if endpoint is not None and store_may_answer(str(endpoint["store_url"])):
        try:
            with wiring.store_of(folder.id, str(endpoint["store_url"])) as store:
                body = status_body(progress_from_store(folder, store))
            return body | {"led": not lock.is_free(folder)}
        except (StoreUnavailable, InputError):
            if not lock.is_free(folder):
                return status_by_books(folder)
            # otherwise it ended while we looked
    # This is checked first: a launcher leaves its receipt before it exits.
    is_led = not lock.is_free(folder)
    return status_by_books(folder) if is_led else _ended(folder) or _lost(folder)


def row_of(folder: RunFolder) -> dict[str, Any]:
    """The run's line in `bamboo list`; for a damaged run the error, and no figures."""
    row: dict[str, Any] = {
        "run": folder.id, "started": None, "phase": DAMAGED, "outcome": None,
        "ended": folder.receipt.exists(), "step": None, "steps": None, "usd": None, "damage": None,
    }  # fmt: skip
    try:
        row["started"] = started_text(folder)
        body = status_of(folder)
        kept = ("phase", "outcome", "ended", "step", "steps", "usd")
        return row | {key: body[key] for key in kept}
    except (InputError, UnreadableRecord) as error:
        return row | {"damage": str(error)}


def store_may_answer(url: str) -> bool:
    """False where the unix socket of a store no longer exists, so that waiting is useless."""
    if not url.startswith("unix://"):
        return True
    path = url.removeprefix("unix://").rpartition("@")[2].partition("?")[0]
    return Path(path).exists()


def store_is_gone(folder: RunFolder) -> bool:
    """Whether the run has no store that could answer."""
    endpoint = folder.live_endpoint()
    return endpoint is None or not store_may_answer(str(endpoint["store_url"]))


def progress_from_store(folder: RunFolder, store: Store) -> Progress:
    """Everything that the launcher's screen shows, folded again from the store."""
    progress = begun_progress(folder, job_of(folder))
    follower = Follower()
    for decision in follower.catch_up(store):
        progress = with_decision(
            progress,
            decision.state,
            event=decision.event,
            reason=decision.reason,
            at_s=decision.now_s,
        )
    stamps_s = kill_stamps_s(folder.kills)
    hearing = Hearing()
    for record in map(hearing.metric, all_records(store, "metrics")):
        if record is not None:
            progress = with_metric(progress, with_kill_stamp(record, stamps_s))
    _, leases = store.leases()
    for node, lease in leases.items():
        if (beat := hearing.beat(lease.payload)) is not None:
            progress = with_beat(progress, node, beat)
    heard = map(hearing.ledger, all_records(store, STREAM))
    values = [r for r in heard if isinstance(r, ValueRecord)]
    return progress.at(now_s=time.time(), usd=values[-1].usd if values else progress.usd)


def progress_before(folder: RunFolder, job: JobConfig, *, started_s: float) -> Progress:
    """What the books of earlier launchers have of a run."""
    progress = empty_progress(folder, job, started_s=started_s)
    metrics = read_metrics(folder.metrics)
    for metric in metrics:
        progress = with_metric(
            progress,
            {
                "kind": "step",
                "step": metric.step,
                "loss": metric.loss,
                "metrics": metric.metrics,
                "t_s": 0.0,
            },
        )
    for evaluation in read_evaluations(folder.metrics):
        progress = with_evaluation(progress, evaluation)
    if metrics:
        progress = progress.at(now_s=progress.now_s, usd=metrics[-1].usd)
    return progress


def status_by_books(folder: RunFolder) -> dict[str, Any]:
    """What the books have of a run that has a launcher, and whose store does not answer or ended
    first."""
    if (ended := _ended(folder)) is not None:  # written while we waited for the store
        return ended
    progress = progress_before(folder, job_of(folder), started_s=part_of(folder).started_s)
    if store_is_gone(folder):
        sentence = (
            "its store is gone and its launcher lives: it writes down how the run ended; ask again"
        )
    else:
        sentence = (
            "its store does not answer and its launcher lives: this is what was written down; "
            "training goes on meanwhile; ask again"
        )
    return status_body(progress) | {"phase": SILENT, "sentence": sentence, "led": True}


def _lost(folder: RunFolder) -> dict[str, Any]:
    progress = progress_before(folder, job_of(folder), started_s=part_of(folder).started_s)
    sentence = "launcher and store are gone without a receipt; nothing of it runs any more"
    if job_of(folder).cloud.provider != "local":
        sentence = (
            "it has no launcher and no receipt, and its store does not answer; its instances "
        )
        sentence += f"may run: `bamboo stop {folder.id}` ends them"
    elif is_detached(folder):
        sentence += f"; `bamboo attach {folder.id}` writes its receipt"
    else:
        sentence += f"; `bamboo resume {folder.id}` goes on with it"
    if full := full_disk(folder.path):
        sentence += f"; before that: {full}"
    return status_body(progress) | {"phase": LOST, "sentence": sentence}
