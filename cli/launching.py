"""One attached launch, from the job file to the receipt.

    load, preflight, plan  ->  (dry run: show, stop)  ->  claim the id  ->  local cloud, store,
    fleet  ->  the launcher's loop  ->  all instances ended  ->  manifest, receipt, summary

Rule: nothing is started before everything that can be known is known, and whatever ends the run,
everything that was started is ended and seen to be gone, and a receipt is left.
"""

import json
import os
import random
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from bamboo.config.catalogue import load_catalogue
from bamboo.config.load import job_to_json, load_job
from bamboo.config.policy import policy_of
from bamboo.config.tree import JobConfig
from bamboo.core.state import Outcome, Phase, initial_state
from bamboo.errors import BambooError, InputError, RunExists, StoreUnavailable
from bamboo.ids import RunId, run_id
from bamboo.ports import Store
from bamboo.telemetry.reader import Tail
from cli import runs, wiring
from cli.books import FileBooks
from cli.decisions import save_decisions
from cli.finish import receipt_body, save_manifest, save_receipt
from cli.follow import Follower
from cli.launcher import Launcher, Ports, Screen
from cli.look import empty_progress
from cli.money import bill, rented_from_journal
from cli.planning import Planned, cheapest_pool, grid_of, plan_job
from cli.progress import Progress
from cli.runs import RunFolder
from cli.signals import Interrupts


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A job that could be launched now; nothing was started for it."""

    run: RunId
    job: JobConfig
    planned: Planned


def prepare(path: Path, *, overrides: Sequence[str], name: str, dry_run: bool) -> Prepared:
    """Everything that can be found out before a start. Raises InputError, RunExists."""
    job = load_job(path, overrides)
    now = datetime.now().astimezone()
    run = run_id(name) if name else runs.fresh_id(path, now=now, chance=random.Random())
    if not dry_run:
        _check_surroundings(job, run)
    cheapest_pool(job, load_catalogue())  # refuses what has no price, before any work
    seen = wiring.run_preflight(job)
    return Prepared(run=run, job=job, planned=plan_job(job, seen, run=run, now_s=time.time()))


def _check_surroundings(job: JobConfig, run: RunId) -> None:
    if job.cloud.provider != "local":
        raise InputError.at(
            file=job.file,
            key="cloud.provider",
            value=job.cloud.provider,
            problem="launching into an account is not released yet",
            remedy='take "local"; `bamboo launch --dry-run` shows the requests',
        )
    if (runs.home() / run).exists():
        raise RunExists(
            f"run {run} exists already in {runs.home()}; take another --run id, or leave it out"
        )
    url = wiring.external_store_url()
    if url:
        wiring.check_external_store(url, run)


def claim(prepared: Prepared, *, source: Path, started_s: float) -> RunFolder:
    """Make the run's folder with its fixed files. Raises RunExists."""
    folder = runs.create(runs.home(), prepared.run)
    shutil.copyfile(source, folder.job)
    folder.events.mkdir()
    resolved = json.loads(job_to_json(prepared.job))
    runs.write_json(
        folder.resolved, {"run": folder.id, "started_s": started_s, "job": resolved["job"]}
    )
    runs.write_text(folder.strategy, prepared.planned.strategy.to_json() + "\n")
    return folder


def run_attached(prepared: Prepared, folder: RunFolder, screen: Screen) -> dict[str, Any]:
    """Run it to its end and give the receipt's content. Raises InputError for wrong input that
    only the start could find; a receipt is left then too."""
    job = prepared.job
    started_s = runs.started_at_s(folder)
    attempt = _Attempt(prepared, folder, screen, empty_progress(folder, job, started_s=started_s))
    with Interrupts().listening() as interrupts:
        try:
            attempt.go(interrupts)
        except KeyboardInterrupt:
            attempt.ended(Outcome.STOPPED, "interrupted before training began")
        except BambooError as error:
            attempt.ended(Outcome.FAULT, str(error))
            if isinstance(error, InputError) and attempt.progress.state.version == 0:
                attempt.settle()
                raise
        return attempt.settle()


class _Attempt:
    """The state of one launch between its start and its receipt."""

    def __init__(
        self, prepared: Prepared, folder: RunFolder, screen: Screen, progress: Progress
    ) -> None:
        self._prepared = prepared
        self._job = prepared.job
        self._folder = folder
        self._screen = screen
        self.progress = progress

    def go(self, interrupts: Interrupts) -> None:
        """Start everything, follow the run to its end, end everything."""
        job, folder, planned = self._job, self._folder, self._prepared.planned
        catalogue = planned.catalogue
        self._screen.note(f"{folder.id}: starting the local cloud")
        with ExitStack() as stack:
            cloud = wiring.start_cloud(
                folder,
                job,
                spot_usd_per_hour=catalogue.spot_prices(job.cloud.instance_types, job.cloud.zones),
            )
            stack.callback(cloud.stop)
            runs.write_json(
                folder.endpoint,
                {
                    "store_url": cloud.store_url,
                    "cloud": asdict(cloud.ready),
                    "launcher_pid": os.getpid(),
                },
                private=True,
            )
            store = stack.enter_context(wiring.store_of(folder.id, cloud.store_url))
            self._create(store)
            fleet = wiring.run_fleet(
                folder,
                job,
                cloud,
                on_demand_usd_per_hour=catalogue.on_demand_prices(),
                note=self._screen.note,
            )
            books = FileBooks(folder)
            stack.callback(books.close)
            stack.callback(self._save_decisions, store)
            stack.callback(fleet.terminate_all)
            launcher = Launcher(
                ports=Ports(
                    store=store,
                    append=wiring.appender(store, "launcher"),
                    fleet=fleet,
                    screen=self._screen,
                    books=books,
                    now=time.time,
                    interrupts=lambda: interrupts.count,
                ),
                follower=Follower(),
                job=job,
                progress=self.progress,
                store_is_ours=not wiring.external_store_url(),
            )
            interrupts.start_counting()
            try:
                launcher.run()
            finally:
                self.progress = launcher.progress

    def _create(self, store: Store) -> None:
        from bamboo.coord.driver import create_run

        job, planned = self._job, self._prepared.planned
        cluster = job.cluster
        created = create_run(
            store,
            state=initial_state(
                run=self._folder.id, grid=grid_of(job), redundancy=cluster.redundancy
            ),
            policy=policy_of(job, planned.cuts),
            documents={
                "job": job_to_json(job),
                "strategy": planned.strategy.to_json(),
                "data": json.dumps(
                    {
                        "digest": planned.strategy.semantics.data_digest,
                        "unigram_entropy_nats": planned.unigram_entropy_nats,
                    }
                ),
                # No tensor on the wire is larger than all that a node holds.
                "limits": json.dumps(
                    {"frame_bytes": max(stage.total for stage in planned.plan.memory)}
                ),
                **wiring.transport_keys(job),
            },
            at_s=time.time(),
        )
        if not created:
            raise RunExists(
                f"the store holds a run {self._folder.id} already; take another --run id"
            )

    def _save_decisions(self, store: Store) -> None:
        try:
            save_decisions(self._folder, store)
        except StoreUnavailable as error:
            self._screen.note(f"the decision log is lost with its store: {error}")

    def ended(self, outcome: Outcome, sentence: str) -> None:
        """The launcher ended it, not the members: note it, unless they had ended it before."""
        if self.progress.finished:
            self._screen.note(sentence)
            return
        state = replace(self.progress.state, phase=Phase.FINISHED, outcome=outcome)
        self.progress = replace(self.progress, state=state, ending=sentence)

    def settle(self) -> dict[str, Any]:
        """Write manifest and receipt from what lies on disk now; the receipt's content."""
        planned = self._prepared.planned
        journal = [json.loads(line) for line in Tail(self._folder.cloud).lines()]
        rented = rented_from_journal(
            journal, on_demand_usd_per_hour=planned.catalogue.on_demand_prices()
        )
        now_s = time.time()
        total = bill(rented, now_s=now_s, modelled=self._job.cloud.provider == "local")
        self.progress = self.progress.at(now_s=now_s, usd=total.usd)
        body = receipt_body(
            self.progress,
            total,
            samples_per_step=self._job.train.batch,
            unigram_entropy_nats=planned.unigram_entropy_nats,
            final_note=save_manifest(self._folder, self.progress),
        )
        save_receipt(self._folder, body)
        return body
