"""Bamboo for Python programs: plan, price, simulate, launch and check a job.

    from bamboo import api

    print(api.plan("job.toml").planned.plan.usd_per_hour)
    run = api.launch("job.toml", overrides={"train.steps": 200})
    print(run.wait(timeout_s=3600)["last_loss"], run.verify()["equal"])

Rule: this is the top floor: whatever a command does, it does with the rooms below, as this does. A
room is imported only when a function needs it. A launch is led by a process of its own, so a
program that ends, or a notebook that is interrupted, ends no run; no signal handler is set here.
Runs are where `$BAMBOO_HOME` says, by default in `./runs`.

Errors are of `bamboo.errors`: InputError for what the caller can mend, BambooError for the rest.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bamboo.errors import InputError
from bamboo.own_packages import find_cloud
from bamboo.ports import Note, Told
from bamboo.private_files import private
from bamboo.run_handle import (
    Overrides,
    Ready,
    Run,
    home,
    list_runs,
    named_file,
    old_runs,
    open_run,
    silent,
    stop_all,
    stop_run,
    untold,
    written,
)

if TYPE_CHECKING:
    from bamboo.chaos.whole import Drawn, Judged
    from bamboo.checkpoint.shared_data import Kept
    from bamboo.config.tree import JobConfig
    from bamboo.data.prepare import Prepared
    from bamboo.doctor.checks import Examination
    from bamboo.sim.market.trace import Trace
    from bamboo.sim.run import Figures
    from bamboo.sites.account.setting_up import AccountFile, Destroyed
    from bamboo.study.compared import Difference
    from bamboo.study.costing import JobCost
    from bamboo.study.explaining import Explained
    from bamboo.study.markets import MarketAsked
    from bamboo.study.paper import Shown
    from bamboo.study.played_trace import TraceAsked
    from bamboo.study.prices import PriceList
    from bamboo.study.profiling import Found
    from bamboo.study.simulating import Simulated
    from bamboo.study.told import Bar

__all__ = (
    "Ready",
    "Run",
    "Simulation",
    "cost",
    "destroy_stack",
    "draw_swarm",
    "examine",
    "explain",
    "home",
    "launch",
    "let_loose",
    "list_runs",
    "load_job",
    "make_stack",
    "named_data",
    "old_runs",
    "open_run",
    "plan",
    "prepare",
    "prepare_data",
    "prices",
    "profile",
    "remove_data",
    "shared_data",
    "simulate",
    "stop_all",
    "stop_run",
    "strategy_difference",
    "write_account_file",
)
"""With what is of runs, in `bamboo.run_handle`."""


def load_job(job: str | Path, *, overrides: Overrides = ()) -> "JobConfig":
    """A job file, checked and resolved. Raises InputError."""
    find_cloud()
    from bamboo import wiring
    from bamboo.config.load import load_job

    wiring.reads_buckets()
    return load_job(named_file(job, what="job"), written(overrides))


def plan(
    job: str | Path,
    *,
    overrides: Overrides = (),
    nodes: int | None = None,
    max_nodes: int | None = None,
    hazard: float | None = None,
    gpu: str | None = None,
    strategy: str | Path | None = None,
    search: int | None = None,
    bar: "Bar | None" = None,
    note: Note = silent,
) -> "Shown":
    """What each node of a job would hold and do, and what the plan is worth, as `bamboo plan` shows
    it: the job's own grid, that of a `strategy` in a file, or the best of exactly `nodes`, or of at
    most `max_nodes`. `hazard` is in losses per node-hour, `gpu` the name of one whose times are
    modelled; of `search` strategies that are priced the best is taken. `bar` shows how far it is,
    `note` what takes a while. Looks at the model in a process of its own. Raises InputError."""
    find_cloud()
    from bamboo.study.paper import Asked, plan_on_paper
    from bamboo.study.told import no_bar

    asked = Asked(
        overrides=written(overrides),
        nodes=nodes,
        max_nodes=max_nodes,
        hazard=hazard,
        gpu=gpu,
        strategy=_optional(strategy, what="strategy"),
        search=search,
    )
    source = named_file(job, what="job")
    return plan_on_paper(source, asked, bar=bar or no_bar, note=note)


def explain(
    job: str | Path,
    *,
    overrides: Overrides = (),
    strategy: str | Path | None = None,
    gpu: str | None = None,
    bar: "Bar | None" = None,
    note: Note = silent,
) -> "Explained":
    """How each parameter of a job is synchronised, what the other kinds would cost, and why, as
    `bamboo explain JOB` shows it; the options are those of `plan`. Raises InputError."""
    find_cloud()
    from bamboo.study.explaining import explain_job
    from bamboo.study.told import no_bar

    return explain_job(
        named_file(job, what="job"),
        written(overrides),
        strategy=_optional(strategy, what="strategy"),
        gpu=gpu,
        bar=bar or no_bar,
        note=note,
    )


def strategy_difference(one: str | Path, other: str | Path) -> "Difference":
    """What differs between the strategies in two files, in bytes of a step, as `bamboo strategy
    diff` shows it. Raises InputError."""
    find_cloud()
    from bamboo.study.compared import difference

    return difference(named_file(one, what="strategy"), named_file(other, what="strategy"))


def cost(
    job: str | Path,
    *,
    overrides: Overrides = (),
    deadline_h: float | None = None,
    budget_usd: float | None = None,
    max_nodes: int | None = None,
    types: tuple[str, ...] = (),
    hazard: float | None = None,
    trace: str | Path | None = None,
    seeds: int = 10,
    rows: int = 8,
    samples_per_s: float = 0.0,
    here: bool = False,
    bar: "Bar | None" = None,
) -> "JobCost":
    """What a job could be rented as, in modelled dollars, and which option to take, as `bamboo cost
    JOB` shows it. The best `rows` options are simulated, each with so many seeds, on a market of
    that `hazard` or like that `trace`. `samples_per_s` is your own figure for the job; `here` takes
    the times of this machine's CPU. Raises InputError."""
    find_cloud()
    from bamboo.study.costing import CostAsked, cost_of_job
    from bamboo.study.pricing import TimesAsked
    from bamboo.study.told import no_bar

    asked = CostAsked(
        times=TimesAsked(samples_per_s=samples_per_s, here=here, types=types),
        deadline_h=deadline_h,
        budget_usd=budget_usd,
        max_nodes=max_nodes,
        hazard=hazard,
        trace=_optional(trace, what="trace"),
        seeds=seeds,
        rows=rows,
    )
    return cost_of_job(
        named_file(job, what="job"), asked, overrides=written(overrides), bar=bar or no_bar
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Runs of a job on a market."""

    simulated: "Simulated"
    """The job, its plan and its market."""
    runs: tuple[Mapping[str, "Figures"], ...]
    """For each seed the figures of each system, by name; ours is `bamboo`."""

    def one_run(self, *, seed: int) -> "tuple[Trace, Figures]":
        """The market of a seed, and what the job did on it, step by step."""
        from bamboo.study import simulating

        return simulating.one_run(self.simulated, seed=seed)


def simulate(
    job: str | Path,
    *,
    overrides: Overrides = (),
    trace: str | Path | None = None,
    market: str | None = None,
    hazard: float | None = None,
    nodes: int | None = None,
    hours: float | None = None,
    asked: "MarketAsked | None" = None,
    seeds: int = 1,
    first_seed: int = 0,
    endless: bool = False,
    strategy: str | Path | None = None,
    gpu: str | None = None,
    rivals: bool = False,
    restart_s: Mapping[str, float] | None = None,
    told: Told = untold,
) -> Simulation:
    """Play a job on a spot market without machines, as `bamboo simulate` does: on a recorded
    `trace`, or on one made up by name (`calm`, `busy`, `storm`) or by its `hazard` in preemptions
    per node-hour; `asked` says all of a market instead. `strategy` is a file that places the job,
    `gpu` the name of one whose times are modelled, and `endless` goes on after `train.steps`.
    `rivals` plays other ways to use the same market too, with restarts of `restart_s` by name.
    `told` is called with (runs done, of all). Raises InputError."""
    find_cloud()
    from bamboo.study import simulating
    from bamboo.study.markets import MarketAsked, MarketOptions

    asked = asked or MarketAsked(
        trace=_optional(trace, what="trace"),
        options=MarketOptions(preset=market, hazard=hazard, nodes=nodes),
        hours=hours,
    )
    if restart_s and not rivals:
        raise InputError("restart_s is of other ways to use a market; give rivals=True too")
    told(0, seeds)
    simulated = simulating.prepare(
        named_file(job, what="job"),
        overrides=written(overrides),
        market=asked,
        endless=endless,
        strategy=_optional(strategy, what="strategy"),
        gpu=gpu,
        restart_s=restart_s,
    )
    runs: list[Mapping[str, Figures]] = []
    for one in simulating.play(simulated, seeds=seeds, first_seed=first_seed, rivals=rivals):
        runs.append(one)
        told(len(runs), seeds)
    return Simulation(simulated=simulated, runs=tuple(runs))


def profile(
    job: str | Path,
    *,
    overrides: Overrides = (),
    device: str = "cpu",
    gpu: str | None = None,
    seconds: float = 60.0,
    fresh: bool = False,
    bar: "Bar | None" = None,
) -> "Found":
    """Time and bytes of each layer of a job, as `bamboo profile` shows them: measured on this
    machine's `device`, `cpu` or `cuda`, in at most so many seconds, or modelled for a named `gpu`.
    What was measured before is read unless `fresh`. Raises InputError."""
    find_cloud()
    from bamboo.study.profiling import Wanted, profile_job
    from bamboo.study.told import no_bar

    wanted = Wanted(device=device, gpu=gpu, limit_s=seconds, fresh=fresh)
    shows = partial(bar or no_bar, "measuring")
    return profile_job(
        named_file(job, what="job"), wanted, overrides=written(overrides), progress=shows
    )


def prepare_data(
    job: str | Path, *, overrides: Overrides = (), bar: "Bar | None" = None
) -> "Mapping[str, Prepared]":
    """Make the data of a job ready, as `bamboo prepare` does: section of the job file, `data` or
    `eval`, -> what there is now; nothing of a section without tokens. `bar` shows how far it is.
    Raises InputError."""
    find_cloud()
    from bamboo import wiring
    from bamboo.config.load import load_job
    from bamboo.data.prepare import prepare
    from bamboo.study.told import no_bar

    wiring.reads_buckets()
    found = load_job(named_file(job, what="job"), written(overrides), prepared=False)
    made = {}
    for section, data in (("data", found.data), ("eval", found.evaluated)):
        if data.is_prepared:
            with (bar or no_bar)(f"preparing [{section}]") as told:
                made[section] = prepare(found, data, told, section=section)
    return made


def shared_data() -> "tuple[Kept, ...]":
    """The tokens that runs share in the bucket of the account file, as `bamboo list --data` shows
    them. Raises InputError where that file names no bucket, StorageUnavailable."""
    find_cloud()
    from bamboo.sites.account.shared import kept_data

    return kept_data()


def named_data(digest: str) -> "Kept":
    """Those of this digest, or of the only one that begins so. Raises InputError where there are
    none, or several, StorageUnavailable."""
    held = shared_data()
    found = [one for one in held if one.digest.startswith(digest)] if digest else []
    if len(found) != 1:
        there = "several digests begin so" if found else "the bucket has no such data"
        raise InputError(f"--data {digest!r}: {there}; see `bamboo list --data`")
    return found[0]


def remove_data(digest: str) -> None:
    """Delete the tokens of this digest, or of the only one that begins so, as `bamboo rm --data`
    does. Raises InputError where there are none, and while a run reads them, StorageUnavailable."""
    found = named_data(digest)
    from bamboo.sites.account.shared import remove_data

    remove_data(found)


def prices(region: str | None = None, *, refresh: bool = False, note: Note = silent) -> "PriceList":
    """What instances cost in a region, by default that of the installed catalogue, and how old that
    is. With `refresh` EC2 is asked first, with this process's credentials. Raises InputError,
    BambooError."""
    find_cloud()
    from bamboo.study.prices import price_list

    return price_list(region, renew=refresh, note=note)


def _optional(path: str | Path | None, *, what: str) -> Path | None:
    return None if path is None else named_file(path, what=what)


def _as_asked(trace: "str | Path | TraceAsked | None") -> "TraceAsked | None":
    from bamboo.study.played_trace import TraceAsked

    if trace is None or isinstance(trace, TraceAsked):
        return trace
    return TraceAsked(path=named_file(trace, what="trace"))


@contextmanager
def prepare(
    job: str | Path,
    *,
    overrides: Overrides = (),
    run: str = "",
    strategy: str | Path | None = None,
    trace: "str | Path | TraceAsked | None" = None,
    gpu: str | None = None,
    dry_run: bool = False,
    note: Note = silent,
) -> Iterator[Ready]:
    """As `launch`, up to where something would be started: `start` or `lead` in the block starts
    the run. With `dry_run` only the plan is wanted, which may be for a named `gpu`."""
    find_cloud()
    from bamboo.controller import launching
    from bamboo.wiring.begun import Begun

    source = named_file(job, what="job")
    with Begun() as begun:
        with private():
            prepared = launching.prepare(
                source,
                overrides=written(overrides),
                name=run,
                dry_run=dry_run,
                trace=_as_asked(trace),
                strategy=_optional(strategy, what="strategy"),
                gpu=gpu,
                begun=begun,
                note=note,
            )
        yield Ready(
            prepared=prepared,
            claim=lambda detached: launching.claim(
                prepared, source=source, started_s=time.time(), detached=bool(detached)
            ),
            begun=begun,
        )


def launch(
    job: str | Path,
    *,
    overrides: Overrides = (),
    run: str = "",
    strategy: str | Path | None = None,
    trace: "str | Path | TraceAsked | None" = None,
    note: Note = silent,
) -> Run:
    """Train a job on spot instances, as `bamboo launch --detach` does, and return once the run can
    be reached. Everything that can be checked is checked before anything is started. `run` is its
    id, by default made from the name of the job; `strategy` is a file that places it, and `trace` a
    recorded market whose nodes it has, as a file, or with terms; `note` gets a line for whatever
    takes a while. Raises InputError, RunExists, BambooError."""
    with prepare(
        job, overrides=overrides, run=run, strategy=strategy, trace=trace, note=note
    ) as ready:
        return ready.start(note=note)


# ---------------------------------------------------------------- this machine and an account


def examine(
    job: str | Path | None = None,
    *,
    overrides: Overrides = (),
    regions: Sequence[str] = (),
    only_orphans: bool = False,
) -> "Examination":
    """What `bamboo doctor` finds of this machine, of the account of a job or of the account file,
    and of what bills without a live run. Nothing is changed. Raises InputError."""
    find_cloud()
    from bamboo.doctor.examination import examination

    return examination(
        _optional(job, what="job"),
        overrides=written(overrides),
        regions=tuple(regions),
        only_orphans=only_orphans,
    )


def make_stack(
    stack: str | Path,
    *,
    variables: Sequence[tuple[str, Any]] = (),
    here: bool = False,
    force: bool = False,
    agree: Callable[[str], bool],
    note: Note = silent,
) -> bool:
    """Make the stack of a directory in an account, as `bamboo init --apply` does, once `agree` has
    answered the question. `here` lets this machine's address reach its store. False: the answer was
    no. Handles Ctrl-C meanwhile. Raises InputError."""
    find_cloud()
    from bamboo.sites.account.setting_up import set_up

    with private():
        return set_up(
            named_file(stack, what="stack"),
            variables,
            here=here,
            force=force,
            agree=agree,
            note=note,
        )


def destroy_stack(
    stack: str | Path, *, agree: Callable[[str], bool], note: Note = silent
) -> "Destroyed | None":
    """Destroy the stack of a directory with all that its bucket holds, once `agree` has answered
    the question; None: the answer was no. Handles Ctrl-C meanwhile. Raises InputError,
    BambooError."""
    find_cloud()
    from bamboo.sites.account.setting_up import take_down

    with private():
        return take_down(named_file(stack, what="stack"), agree=agree, note=note)


def write_account_file(source: str | Path, *, force: bool = False) -> "AccountFile":
    """Write what stands in an account into the account file, as `bamboo init` does. Raises
    InputError."""
    find_cloud()
    from bamboo.sites.account.setting_up import write_down

    return write_down(str(source), force=force)


# ---------------------------------------------------------------- swarms of faults


def draw_swarm(
    job: str | Path, *, overrides: Overrides = (), seed: int, minutes: float = 10.0
) -> "Drawn":
    """The faults that `bamboo chaos` would let loose on a job for this seed. Raises InputError."""
    find_cloud()
    from bamboo.chaos.whole import draw_swarm

    return draw_swarm(
        named_file(job, what="job"), overrides=written(overrides), seed=seed, minutes=minutes
    )


def let_loose(drawn: "Drawn", *, run: str = "", note: Note = silent) -> "Judged":
    """Train that job on this machine under those faults, then check what became of it. Handles
    signals meanwhile, so the caller is the main thread. Raises InputError, BambooError."""
    from bamboo.chaos.whole import let_loose

    with private():
        return let_loose(drawn, name=run, tell=note)
