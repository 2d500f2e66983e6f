"""One launcher's part of a run: from the start, or from where an earlier launcher left it, to its
receipt.

    start:    site, store, endpoint         \
    take up:  find both, hold the site      /  ->  fleet  ->  the launcher's loop  ->  all ended
                                                                                 ->  receipt
    take up what has no site any more:  read its store, books, receipt

Rule: whatever ends the run, everything that was started is ended and seen to be gone, and a receipt
is left. A launcher that leaves a detached run ends nothing.
"""

import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from bamboo import wiring
from bamboo.billing.money import Rented, bill, rented_in
from bamboo.billing.parts import last_sign_of_life_s
from bamboo.billing.receipt import receipt_body, save_receipt, with_taken
from bamboo.checkpoint.stopped import keep_final
from bamboo.config.check_eval import LOSS
from bamboo.config.load import job_to_json
from bamboo.config.tree import LIVE, JobConfig
from bamboo.controller.autoscaling import Autoscaler
from bamboo.controller.launcher import Launcher, launcher_of
from bamboo.controller.market import Market
from bamboo.controller.ports import Fleet, Ports
from bamboo.controller.spending import spending_of
from bamboo.controller.terms import Terms, terms_kept, terms_of
from bamboo.coord.follow import Follower
from bamboo.core.evaluation import after_evaluations
from bamboo.core.state import Outcome, Phase, initial_state
from bamboo.disk import full_disk
from bamboo.errors import (
    BambooError,
    BooksUnwritable,
    InputError,
    RunExists,
    StorageUnavailable,
    StoreUnavailable,
)
from bamboo.ports import Store
from bamboo.runs import disk_space, run_folder
from bamboo.runs.books import Booked, FileBooks, read_booked
from bamboo.runs.decisions import save_decisions
from bamboo.runs.final_state import save_manifest
from bamboo.runs.ports import Screen
from bamboo.runs.progress import Progress
from bamboo.runs.run_folder import RunFolder
from bamboo.runs.run_status import begun_progress
from bamboo.signals import AT_ONCE, Interrupts
from bamboo.sites import opened
from bamboo.sites.site import Site
from bamboo.study.played_trace import replayed
from bamboo.study.settling import grid_of
from bamboo.telemetry.records import read_evaluations
from bamboo.trackers.supervised import Logged, Trackers
from bamboo.wiring.begun import Begun

if TYPE_CHECKING:
    from bamboo.controller.searching import Searcher
    from bamboo.coord.driver import Driver
    from bamboo.sites.fleet import RunFleet

ALONE_S = 3600.0
"""A detached run on this machine is ended after so long without a launcher; `budget.max_hours`
overrides it."""


def launch(
    folder: RunFolder,
    screen: Screen,
    interrupts: Interrupts,
    *,
    ready: Callable[[], None],
    begun: Begun | None = None,
) -> dict[str, Any] | None:
    """Start a claimed run and lead it to its end, in the local cloud that has already `begun` if
    there is one. Returns the content of the receipt, or None when this launcher left the run.
    `ready` is called once the run can be reached. Raises InputError for wrong input that only the
    start finds; the run then has a receipt too."""
    attempt = _Attempt(folder, screen, interrupts, ready)
    with interrupts.listening():
        return attempt.settled(lambda: attempt.start(begun))


def take_up(
    folder: RunFolder, screen: Screen, interrupts: Interrupts, *, ready: Callable[[], None]
) -> dict[str, Any] | None:
    """As `launch`, for a detached run whose launcher is gone. Where the local cloud is gone too, or
    an account has no instance of the run, the run is settled from what its store holds. Raises
    InputError, and changes nothing, for a run that could never be reached."""
    site = opened.site_of(folder)
    attempt = _Attempt(folder, screen, interrupts, ready)
    if not site.alive():
        site.stop()  # makes sure that nothing of it is left
        disk_space.refuse_to_settle(folder)
        with opened.store_left_by(folder, site) as store:
            booked = attempt.booked()
            return attempt.settled(lambda: attempt.close(store, booked))
    with ExitStack() as stack:
        stack.enter_context(interrupts.listening())
        store = stack.enter_context(wiring.store_of(folder.id, site.store_url))
        stack.callback(site.release)
        interrupts.start_counting()
        attempt.hold(site)
        booked = attempt.booked()
        # The store is read here, where an outage ends nothing. From now on only the loop reads it.
        driver = wiring.driver(store, "launcher")
        return attempt.settled(lambda: attempt.go_on(site, store, driver, booked))


class _Attempt:
    """The state of one launcher between its start and its receipt."""

    def __init__(
        self,
        folder: RunFolder,
        screen: Screen,
        interrupts: Interrupts,
        ready: Callable[[], None],
    ) -> None:
        self._terms = terms_of(folder)
        self._job = self._terms.job
        self._folder = folder
        self._screen = screen
        self._interrupts = interrupts
        self._ready = ready
        self._left = False
        self._over_at_s: float | None = None
        self._unwritten: BooksUnwritable | None = None
        """Why the books are not complete. The run then gets no receipt, and the next launcher
        completes them."""
        self._troubles: list[str] = []
        """What went wrong after the run's own end or apart from it. The receipt lists it."""
        self._started_s = self._terms.part.started_s
        self._trackers = Trackers(folder, self._job.log, screen)
        self.progress = begun_progress(folder, self._job)

    def settled(self, part: Callable[[], None]) -> dict[str, Any] | None:
        """Do `part` and settle the run however it ended; None when the run goes on without us."""
        try:
            part()
        except KeyboardInterrupt:
            first = self._terms.part.number == 1
            began = "training began" if first else f"it went on; `bamboo resume {self._folder.id}`"
            self._ended(Outcome.STOPPED, f"interrupted before {began}")
        except BambooError as error:
            self._ended(Outcome.FAULT, disk_space.with_disk(self._folder, str(error)))
            if isinstance(error, InputError) and self.progress.state.version == 0:
                self._settle()
                raise
        return self._settle()

    def start(self, begun: Begun | None) -> None:
        """Start everything, follow the run to its end, end everything."""
        folder, job = self._folder, self._job
        with ExitStack() as stack:
            site = opened.start_site(
                folder,
                job,
                begun=begun,
                data_digest=self._terms.strategy.semantics.data_digest,
                note=self._screen.note,
                spot_usd_per_hour=self._terms.catalogue.spot_prices(
                    job.cloud.instance_types, job.cloud.zones
                ),
            )
            stack.callback(self._unless_left, site.stop)
            store = stack.enter_context(wiring.store_of(folder.id, site.store_url))
            _create(store, folder, self._terms)
            _write_endpoint(folder, site)
            site.prepare()
            if self._terms.detached:
                self.hold(site)
            driver = wiring.driver(store, "launcher")
            self._lead(stack, site, store, driver, self.booked())

    def booked(self) -> Booked:
        """What earlier launchers wrote, with the steps of earlier parts of the run, which the store
        of this part does not have."""
        booked = read_booked(self._folder, part=self._terms.part.number)
        self.progress = begun_progress(self._folder, self._job)
        return booked

    def go_on(self, site: Site, store: Store, driver: "Driver", booked: Booked) -> None:
        """Follow a run that is under way to its end, as if we had started it."""
        self._screen.note(f"{self._folder.id}: a new launcher takes up the run")
        self.progress = replace(self.progress, now_s=time.time())
        with ExitStack() as stack:
            stack.callback(self._unless_left, site.stop)
            try:
                _write_endpoint(self._folder, site)
            except BooksUnwritable as error:
                self._screen.note(str(error))  # the older endpoint leads to the run as well
            self._lead(stack, site, store, driver, booked)

    def hold(self, site: Site) -> None:
        """Make the site outlive its launchers, though not for ever."""
        hours = self._job.budget.max_hours
        site.hold(alone_s=ALONE_S, until_s=self._started_s + hours * 3600 if hours > 0 else 0.0)

    def close(self, store: Store, booked: Booked) -> None:
        """Write the rest of a run that ended while it had no launcher."""
        folder = self._folder
        where = "local cloud is" if self._job.cloud.provider == "local" else "instances are all"
        self._screen.note(f"{folder.id}: its {where} gone; writing its receipt")
        self.progress = replace(self.progress, now_s=time.time())
        self._ready()
        fleet = opened.former_fleet(
            folder, self._job, on_demand_usd_per_hour=self._terms.catalogue.on_demand_prices()
        )
        with ExitStack() as stack:
            driver = wiring.driver(store, "launcher")
            launcher = self._launcher(stack, store, driver, fleet, booked, store_is_ours=True)
            try:
                launcher.catch_up()
            finally:
                self.progress = launcher.progress
            self._save_decisions(store)
        self._over_at_s = last_sign_of_life_s(folder, store)
        if not self.progress.finished:
            hours = self._job.budget.max_hours
            over_budget = 0 < hours <= (self._over_at_s - self._started_s) / 3600
            self._ended(
                Outcome.BUDGET if over_budget else Outcome.FAULT,
                f"its {where} gone after step {self.progress.step}, and no launcher was there "
                f"to the end or could write it down; see `bamboo logs {folder.id}`",
            )

    def _lead(
        self,
        stack: ExitStack,
        site: Site,
        store: Store,
        driver: "Driver",
        booked: Booked,
    ) -> None:
        fleet = opened.run_fleet(
            self._folder,
            self._job,
            site,
            catalogue=self._terms.catalogue,
            zones=self._terms.zones,
            screen=self._screen,
        )
        stack.callback(self._unless_left, lambda: self._save_decisions(store))
        stack.callback(self._close, fleet)
        stack.callback(self._unless_left, fleet.terminate_all)
        launcher = self._launcher(stack, store, driver, fleet, booked, store_is_ours=site.has_store)
        self._interrupts.start_counting()
        self._ready()
        try:
            launcher.run()
        finally:
            self.progress = launcher.progress
        self._left = not self.progress.finished

    def _launcher(
        self,
        stack: ExitStack,
        store: Store,
        driver: "Driver",
        fleet: Fleet,
        booked: Booked,
        *,
        store_is_ours: bool,
    ) -> Launcher:
        books = FileBooks(self._folder, part=self._terms.part.number, note=self._screen.note)
        stack.callback(self._close, books)
        ports = Ports(
            append=driver.append, fleet=fleet, screen=self._trackers, books=books, now=time.time
        )
        return launcher_of(
            ports,
            store=store,
            follower=Follower(driver),
            wishes=self._interrupts,
            job=self._job,
            progress=self.progress,
            store_is_ours=store_is_ours,
            booked=booked,
            market=_market(self._folder, self._terms, booked),
            autoscaler=_autoscaler(self._terms, booked, note=self._screen.note),
            spending=spending_of(self._terms),
            searcher=_searcher(self._folder, self._terms, ports, store),
            disk=lambda: full_disk(self._folder.path),
        )

    def _unless_left(self, end: Callable[[], None]) -> None:
        if not self._left:
            end()

    def _close(self, books: "FileBooks | RunFleet") -> None:
        try:
            books.close()
        except BooksUnwritable as error:
            self._unwritten = error

    def _save_decisions(self, store: Store) -> None:
        try:
            save_decisions(self._folder, store)
        except StoreUnavailable as error:
            self._screen.note(f"the decision log is lost with its store: {error}")
        except BooksUnwritable as error:
            self._unwritten = error

    def _ended(self, outcome: Outcome, sentence: str) -> None:
        """Note that the launcher ended the run, unless the members ended it before."""
        if self.progress.finished:
            self._trouble(sentence)
            return
        state = replace(self.progress.state, phase=Phase.FINISHED, outcome=outcome)
        self.progress = replace(self.progress, state=state, ending=sentence)

    def _trouble(self, sentence: str) -> None:
        self._screen.note(sentence)
        self._troubles.append(sentence)

    def _settle(self) -> dict[str, Any] | None:
        """Write manifest and receipt from what is on disk now. Returns the content of the receipt,
        None where the run goes on without us. Raises BooksUnwritable when the disk takes neither
        or did not take the books before, and InputError for a damaged bill."""
        self._over_at_s = self._over_at_s or time.time()  # the run does not last while trackers do
        ending = None if self._left else self.progress.outcome
        logged = self._trackers.close(ending, at_once=self._interrupts.count >= AT_ONCE)
        if self._left:
            return None
        try:
            if self._unwritten is not None:
                raise self._unwritten
            return self._written(logged)
        except (BooksUnwritable, InputError, StorageUnavailable, OSError) as error:
            raise disk_space.unsettled(self._folder, self.progress.sentence, error) from error

    def _written(self, logged: Sequence[Logged]) -> dict[str, Any]:
        terms = self._terms
        rented = _rented(self._folder, terms)
        now_s = self._over_at_s or time.time()
        total = bill(rented, now_s=now_s, modelled=self._job.cloud.provider == "local")
        self.progress = with_taken(self.progress, rented)
        self.progress = (spending := spending_of(terms)).at(self.progress, rented, now_s=now_s)
        body = receipt_body(
            self.progress,
            total,
            beside=spending.beside_body(self.progress, rented, now_s=now_s),
            samples_per_step=self._job.train.batch,
            unigram_entropy_nats=terms.unigram_entropy_nats,
            final_note=save_manifest(self._folder, self.progress, terms.job),
            part=terms.part,
            launched_s=run_folder.started_at_s(self._folder),
        )
        if why := keep_stopped(self._folder, self.progress, terms, body):
            self._trouble(why)
        troubles = [*self._troubles, *(one.sentence for one in logged if one.sentence)]
        body |= {"troubles": troubles, "trackers": [asdict(one) for one in logged]}
        body |= terms_kept(self._folder, terms, body["step"])
        save_receipt(self._folder, body)
        return body


def _rented(folder: RunFolder, terms: Terms) -> list[Rented]:
    return rented_in(
        folder.cloud,
        on_demand_usd_per_hour=terms.catalogue.on_demand_prices(),
        free_first_hour=terms.job.budget.free_first_hour,
    )


def keep_stopped(
    folder: RunFolder, progress: Progress, terms: Terms, receipt: dict[str, Any]
) -> str:
    """Make the final state of a stopped run a checkpoint, so that `bamboo resume` repeats no step,
    and name it in the receipt. Returns what went wrong, or "". A run with no steps left gets no
    checkpoint, and one that exists already stays."""
    stopped = progress.outcome in (Outcome.STOPPED, Outcome.BUDGET)
    if not stopped or not folder.final_manifest.exists() or progress.steps_done >= progress.steps:
        return ""
    if receipt["newest_checkpoint"] == progress.steps_done:
        return ""
    try:
        receipt["newest_checkpoint"] = keep_final(
            wiring.checkpoints_of(folder, terms.job),
            folder.final,
            run=folder.id,
            semantic_hash=terms.strategy.semantics.hash_at,
            stages=progress.state.grid.stages,
            generation=progress.state.era,
            layers=terms.layers,
            now_s=progress.now_s,
        )
    except (InputError, StorageUnavailable) as error:
        return f"the state of the stop could not be kept as a checkpoint: {error}"
    return ""


def _write_endpoint(folder: RunFolder, site: Site) -> None:
    body = {"store_url": site.store_url, **site.record(), "launcher_pid": os.getpid()}
    run_folder.write_json(folder.endpoint, body)


def _searcher(folder: RunFolder, terms: Terms, ports: Ports, store: Store) -> "Searcher | None":
    """The searcher of a run that wants one; what it computes with is loaded for it alone."""
    if terms.job.cluster.search != LIVE:
        return None
    from bamboo.controller.searching import searcher_of

    return searcher_of(folder, terms, ports, store)


def _market(folder: RunFolder, terms: Terms, booked: Booked) -> Market | None:
    if terms.trace is None:
        return None
    played = replayed(folder.trace, terms.trace)
    return Market(played, seated=booked.seated, ordered=booked.lost)


def _autoscaler(terms: Terms, booked: Booked, *, note: Callable[[str], None]) -> Autoscaler | None:
    if not terms.job.autoscale.enabled:
        return None
    autoscaler = Autoscaler(terms.job, terms.policy, booked, led_before_s=terms.part.led_before_s)
    note(autoscaler.sentence)
    return autoscaler


def _create(store: Store, folder: RunFolder, terms: Terms) -> None:
    """Create the run in its store, with its fixed documents. Raises RunExists."""
    from bamboo.coord.driver import create_run

    job, run = terms.job, folder.id
    first = initial_state(
        run=run,
        grid=grid_of(job),
        redundancy=job.cluster.redundancy,
        checkpoints=terms.checkpoints,
        attested=terms.attested,
    )
    if terms.checkpoints:  # else it begins at step 0
        first = after_evaluations(first, _evaluated_before(folder, job), terms.policy)
    created = create_run(
        store,
        state=first,
        policy=terms.policy,
        documents={
            "job": job_to_json(job),
            "strategy": terms.strategy.to_json(),
            "data": json.dumps(
                {
                    "digest": terms.strategy.semantics.data_digest,
                    "unigram_entropy_nats": terms.unigram_entropy_nats,
                }
            ),
            "limits": json.dumps({"frame_bytes": terms.frame_bytes, "layers": terms.layers}),
            **_transport_keys(job),
        },
        at_s=time.time(),
    )
    if not created:
        raise RunExists(f"the store holds a run {run} already; take another --run id")


def _evaluated_before(folder: RunFolder, job: JobConfig) -> list[tuple[int, float]]:
    """Step and value of each evaluation of the present segment so far; the value is that of the
    metric that may end the run, NaN where it was not measured. Raises InputError for a damaged
    record."""
    wanted = job.eval.stop.metric or LOSS
    begun = job.segments[-1].to_step if job.segments else 0
    return [
        (one.step, {LOSS: one.loss, **one.metrics}.get(wanted, float("nan")))
        for one in read_evaluations(folder.metrics)
        if job.eval.every_steps and one.step >= begun
    ]


def _transport_keys(job: JobConfig) -> dict[str, str]:
    """The document `keys` of a run whose workers talk over tcp: CURVE keys made for this run alone;
    none where a 0700 directory keeps other users out. They are kept in the run's store alone."""
    if job.cluster.transport == "ipc":
        return {}
    import zmq

    pairs = {name: zmq.curve_keypair() for name in ("server", "client")}
    keys = {
        f"{name}_{half}": key.decode()
        for name, pair in pairs.items()
        for half, key in zip(("public", "secret"), pair, strict=True)
    }
    return {"keys": json.dumps(keys)}
