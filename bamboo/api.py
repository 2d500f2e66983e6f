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

import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bamboo import own_packages
from bamboo.errors import BambooError, InputError
from bamboo.private_files import private

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bamboo.config.tree import JobConfig
    from bamboo.runs.run_folder import RunFolder
    from bamboo.sim.run import Figures
    from bamboo.study.costing import JobCost
    from bamboo.study.markets import MarketAsked
    from bamboo.study.paper import Shown
    from bamboo.study.played_trace import TraceAsked
    from bamboo.study.simulating import Simulated
    from bamboo.study.told import Bar

LOOK_S = 0.2
LED_EVERY_S = 1.0
"""Seconds between two checks whether a run has a launcher."""

Overrides: TypeAlias = Mapping[str, Any] | Sequence[str]
"""Keys of a job file with other values, such as {"train.steps": 200, "cluster.cut": [0, 2]}; or as
`--set` takes them, such as ["train.steps=200"]."""


def _find_own() -> None:
    """From now on this process finds Bamboo's own package `cloud`. Raises InputError where it has
    imported another one of that name."""
    own_packages.find_own(("cloud",))
    module, ours = sys.modules.get("cloud"), own_packages.FOLDER / "cloud"
    if module is None or Path(module.__file__ or "").resolve().is_relative_to(ours):
        return
    raise InputError(
        f"this program has imported a package 'cloud' that is not Bamboo's, {module.__file__}; "
        "rename it, or use Bamboo from a process of its own"
    )


def _written(overrides: Overrides) -> tuple[str, ...]:
    """As `--set` takes them. A path is written as text."""
    if not isinstance(overrides, Mapping):
        return tuple(overrides)
    return tuple(f"{key}={json.dumps(value, default=str)}" for key, value in overrides.items())


def load_job(job: str | Path, *, overrides: Overrides = ()) -> "JobConfig":
    """A job file, checked and resolved. Raises InputError."""
    from bamboo.config.load import load_job

    return load_job(job, _written(overrides))


def plan(
    job: str | Path,
    *,
    overrides: Overrides = (),
    nodes: int | None = None,
    max_nodes: int | None = None,
    hazard: float | None = None,
    gpu: str | None = None,
    bar: "Bar | None" = None,
) -> "Shown":
    """What each node of a job would hold and do, and what the plan is worth, as `bamboo plan` shows
    it: the job's own grid, or the best of exactly `nodes`, or of at most `max_nodes`. `hazard` is
    in losses per node-hour, `gpu` the name of one whose times are modelled; `bar` shows how far it
    is. Looks at the model in a process of its own. Raises InputError."""
    _find_own()
    from bamboo.study.paper import Asked, plan_on_paper
    from bamboo.study.told import no_bar

    asked = Asked(
        overrides=_written(overrides),
        nodes=nodes,
        max_nodes=max_nodes,
        hazard=hazard,
        gpu=gpu,
    )
    return plan_on_paper(Path(job), asked, bar=bar or no_bar)


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
    _find_own()
    from bamboo.study.costing import CostAsked, cost_of_job
    from bamboo.study.pricing import TimesAsked
    from bamboo.study.told import no_bar

    asked = CostAsked(
        times=TimesAsked(samples_per_s=samples_per_s, here=here, types=types),
        deadline_h=deadline_h,
        budget_usd=budget_usd,
        max_nodes=max_nodes,
        hazard=hazard,
        trace=None if trace is None else Path(trace),
        seeds=seeds,
        rows=rows,
    )
    return cost_of_job(Path(job), asked, overrides=_written(overrides), bar=bar or no_bar)


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Runs of a job on a market."""

    simulated: "Simulated"
    """The job, its plan and its market."""
    runs: tuple[Mapping[str, "Figures"], ...]
    """For each seed the figures of each system, by name; ours is `bamboo`."""


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
    told: Callable[[int, int], None] = lambda done, of_all: None,
) -> Simulation:
    """Play a job on a spot market without machines, as `bamboo simulate` does: on a recorded
    `trace`, or on one made up by name (`calm`, `busy`, `storm`) or by its `hazard` in preemptions
    per node-hour; `asked` says all of a market instead. `strategy` is a file that places the job,
    `gpu` the name of one whose times are modelled, and `endless` goes on after `train.steps`.
    `rivals` plays other ways to use the same market too, with restarts of `restart_s` by name.
    `told` is called with (runs done, of all). Raises InputError."""
    _find_own()
    from bamboo.study import simulating
    from bamboo.study.markets import MarketAsked, MarketOptions

    asked = asked or MarketAsked(
        trace=None if trace is None else Path(trace),
        options=MarketOptions(preset=market, hazard=hazard, nodes=nodes),
        hours=hours,
    )
    told(0, seeds)
    simulated = simulating.prepare(
        Path(job),
        overrides=_written(overrides),
        market=asked,
        endless=endless,
        strategy=None if strategy is None else Path(strategy),
        gpu=gpu,
        restart_s=restart_s,
    )
    runs: list[Mapping[str, Figures]] = []
    for one in simulating.play(simulated, seeds=seeds, first_seed=first_seed, rivals=rivals):
        runs.append(one)
        told(len(runs), seeds)
    return Simulation(simulated=simulated, runs=tuple(runs))


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The finished steps of a run, in order; all arrays have one entry per step."""

    step: "NDArray[np.int64]"
    """The first step is 0."""
    loss: "NDArray[np.float64]"
    """Nats per token, all bits."""
    tokens_per_s: "NDArray[np.float64]"
    usd: "NDArray[np.float64]"
    """Dollars of the run up to this step; modelled for a run on this machine."""
    at_s: "NDArray[np.float64]"
    """Unix time at which the step was taken; NaN where it was not recorded."""


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was launched, by whomever. It holds nothing open: drop it whenever you like."""

    folder: "RunFolder"

    @property
    def id(self) -> str:
        """The name by which every command finds it too."""
        return self.folder.id

    def status(self) -> dict[str, Any]:
        """What `bamboo status --json` prints: phase, step, nodes, and whether it has `ended`."""
        from bamboo.runs.run_status import status_of

        return status_of(self.folder)

    def cost(self) -> dict[str, Any]:
        """What `bamboo cost RUN --json` prints: dollars by now or in all, and where they went."""
        from bamboo.billing.run_cost import cost_of_run

        return cost_of_run(self.folder)

    def metrics(self) -> Metrics:
        """The steps that are finished by now. Raises InputError for a damaged file."""
        import numpy as np

        from bamboo.telemetry.reader import read_metrics

        steps = read_metrics(self.folder.metrics)
        return Metrics(
            step=np.array([one.step for one in steps], dtype=np.int64),
            loss=np.array([one.loss for one in steps], dtype=np.float64),
            tokens_per_s=np.array([one.tokens_per_s for one in steps], dtype=np.float64),
            usd=np.array([one.usd for one in steps], dtype=np.float64),
            at_s=np.array(
                [np.nan if one.at_s is None else one.at_s for one in steps], dtype=np.float64
            ),
        )

    def receipt(self) -> dict[str, Any] | None:
        """What it did and cost, once it has ended; None before. Raises InputError for a damaged
        file."""
        if not self.folder.receipt.exists():
            return None
        return self.folder.read_json(self.folder.receipt)

    def wait(
        self, *, timeout_s: float = inf, note: Callable[[str], None] = lambda text: None
    ) -> dict[str, Any]:
        """Wait for the end and return the receipt. A run that has lost its launcher gets another
        one, and `note` is told so. Raises BambooError after `timeout_s`, while the run goes on, and
        InputError for a run that ended without a receipt."""
        from bamboo.controller.attaching import keep_led
        from bamboo.sites.opened import outlives_its_launcher

        end_s, look_at_s = time.monotonic() + timeout_s, 0.0
        detached = outlives_its_launcher(self.folder)
        while (receipt := self.receipt()) is None:
            now_s = time.monotonic()
            if now_s >= end_s:
                raise BambooError(f"run {self.id} has not ended within {timeout_s:g} s; it goes on")
            if now_s >= look_at_s:
                look_at_s = now_s + LED_EVERY_S
                with private():
                    keep_led(self.folder, note, detached=detached)
            time.sleep(LOOK_S)
        return receipt

    def stop(self) -> str:
        """End it at its next step boundary, and return how it ended, as a sentence. Its state is
        kept, and `bamboo resume` goes on with it. Raises InputError where it does not live."""
        from bamboo.controller.stop_wish import stop_at_a_boundary

        with private():
            return stop_at_a_boundary(self.folder, no_wait=False)[1]

    def verify(
        self,
        *,
        steps: tuple[int, int] | None = None,
        told: Callable[[int, int], None] = lambda step, steps: None,
    ) -> dict[str, Any]:
        """Train it again calmly, in one process, and compare every bit: `equal`, and where it is
        false `first_difference`. `steps` (first, stop) checks that segment alone. It takes about as
        long as the run did. `told` is called with (step, steps). Raises InputError where there is
        nothing to compare."""
        from bamboo.runs import verifying

        if steps is not None:
            return verifying.check_segment(self.folder, *steps, told=told)
        return verifying.check_bits(self.folder, told=told)

    def final_state(self) -> "dict[str, NDArray[Any]]":
        """Parameters (`param/<layer>.<name>`) and moments (`exp_avg/…`, `exp_avg_sq/…`) at its end.
        In an account they are fetched first. Raises InputError where there are none, or a file is
        damaged."""
        from safetensors.numpy import load_file

        from bamboo.runs.final_state import wrong_with_final

        if why := wrong_with_final(self.folder):
            raise InputError(f"run {self.id} has no final state: {why}")
        found: dict[str, NDArray[Any]] = {}
        for file in sorted(self.folder.final.glob("stage-*.safetensors")):
            found |= load_file(file)
        return found


def launch(
    job: str | Path,
    *,
    overrides: Overrides = (),
    run: str = "",
    strategy: str | Path | None = None,
    trace: "TraceAsked | None" = None,
    note: Callable[[str], None] = lambda text: None,
) -> Run:
    """Train a job on spot instances, as `bamboo launch --detach` does, and return once the run can
    be reached. Everything that can be checked is checked before anything is started. `run` is its
    id, by default made from the name of the job; `strategy` is a file that places it, and `trace` a
    recorded market whose nodes it has; `note` gets a line for whatever takes a while. Raises
    InputError, RunExists, BambooError."""
    _find_own()
    from bamboo.controller import background, launching
    from bamboo.wiring.begun import Begun

    with private(), Begun() as begun:
        prepared = launching.prepare(
            Path(job),
            overrides=_written(overrides),
            name=run,
            dry_run=False,
            trace=trace,
            strategy=None if strategy is None else Path(strategy),
            begun=begun,
            note=note,
        )
        folder, held = launching.claim(
            prepared, source=Path(job), started_s=time.time(), detached=True
        )
        background.start(folder, held, begun, fresh=True)
    return Run(folder)


def open_run(run: str = "last") -> Run:
    """A run by its id, a unique prefix of it, or `last`. Raises InputError."""
    _find_own()
    from bamboo.runs import run_folder

    return Run(run_folder.find(run_folder.home(), run))
