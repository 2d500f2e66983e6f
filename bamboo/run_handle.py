"""Runs that were launched, by whomever: which there are, what can be asked of one and done to it.

Rule: a handle holds nothing open and owns nothing, so a program drops it whenever it likes. As in
`bamboo.api`, a room is imported only when a method needs it, and only what says so handles signals.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from math import inf, isnan
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from bamboo.errors import BambooError, InputError
from bamboo.own_packages import find_cloud
from bamboo.ports import Note, Told
from bamboo.private_files import private

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bamboo.controller.launching import Prepared
    from bamboo.controller.resuming import Resumed
    from bamboo.controller.stop_anywhere import Stopped
    from bamboo.runs.lock import Lock
    from bamboo.runs.ports import Screen
    from bamboo.runs.run_folder import RunFolder
    from bamboo.study.explaining import Explained
    from bamboo.study.report import Report
    from bamboo.telemetry.records import MetricRecord
    from bamboo.wiring.begun import Begun

LOOK_S = 0.2
LONGEST_SHOWN = 80
LED_EVERY_S = 1.0
"""Seconds between two checks whether a run has a launcher."""

Overrides: TypeAlias = Mapping[str, Any] | Sequence[str]
"""Keys of a job file with other values, such as {"train.steps": 200, "cluster.cut": [0, 2]}; or as
`--set` takes them, such as ["train.steps=200"]."""


def written(overrides: Overrides) -> tuple[str, ...]:
    """As `--set` takes them. A path is written as text, a value of NumPy as its number. Raises
    InputError."""
    if isinstance(overrides, Mapping):
        try:
            texts = {key: json.dumps(value, default=_plain) for key, value in overrides.items()}
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(f"overrides: a value is wrong ({error}); give another") from error
        return tuple(f"{key}={text}" for key, text in texts.items())
    listed = isinstance(overrides, Sequence) and not isinstance(overrides, str | bytes)
    if not listed or not all(isinstance(one, str) for one in overrides):
        raise InputError(
            f"overrides = {shown(overrides)}: is no mapping, and no list of texts; write it as "
            '{"train.steps": 200}, or as ["train.steps=200"]'
        )
    return tuple(overrides)


def _plain(value: Any) -> Any:
    listed = getattr(value, "tolist", None)
    return listed() if callable(listed) else str(value)


def named_file(path: str | Path, *, what: str) -> Path:
    """A path that the caller gave as `what`. Raises InputError for what is no name of a file."""
    if not isinstance(path, str | Path) or "\0" in str(path):
        raise InputError(f"{what} = {shown(path)}: is no path; give the name of a file, as text")
    return Path(path)


def shown(value: object) -> str:
    """A wrong value, cut to a length that an error of one line can have."""
    text = repr(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."


def silent(text: str) -> None:
    """The note of a caller that shows nothing."""


def untold(done: int, of_all: int) -> None:
    """The progress of a caller that shows none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """The finished steps of a run, in order; all arrays have one entry per step."""

    step: "NDArray[np.int64]"
    """The first step is 0."""
    loss: "NDArray[np.float64]"
    """By what a step counts: for text nats per token. All bits."""
    metrics: Mapping[str, "NDArray[np.float64]"]
    """What the model measures beside its loss, by name; NaN where a step has none."""
    samples_per_s: "NDArray[np.float64]"
    tokens_per_s: "NDArray[np.float64]"
    """NaN where the data are no text."""
    usd: "NDArray[np.float64]"
    """Dollars of the run up to this step; modelled for a run on this machine."""
    at_s: "NDArray[np.float64]"
    """Unix time at which the step was taken; NaN where it was not recorded."""


def _metrics_of(steps: "Sequence[MetricRecord]") -> Metrics:
    import numpy as np

    def column(values: "Iterable[float | None]") -> "NDArray[np.float64]":
        return np.array([np.nan if x is None else x for x in values], dtype=np.float64)

    names = dict.fromkeys(name for one in steps for name in one.metrics)
    return Metrics(
        step=np.array([one.step for one in steps], dtype=np.int64),
        loss=column(one.loss for one in steps),
        metrics={name: column(one.metrics.get(name) for one in steps) for name in names},
        samples_per_s=column(one.samples_per_s for one in steps),
        tokens_per_s=column(one.tokens_per_s for one in steps),
        usd=column(one.usd for one in steps),
        at_s=column(one.at_s for one in steps),
    )


@dataclass(frozen=True, slots=True)
class _Trained:
    """What a run has trained, and what can be done with it."""

    folder: "RunFolder"

    @property
    def id(self) -> str:
        """The name by which every command finds it too."""
        return self.folder.id

    def final_state(self) -> "dict[str, NDArray[Any]]":
        """Parameters (`param/<layer>.<name>`), moments (`exp_avg/…`, `exp_avg_sq/…`) and buffers
        (`buffer/…`) at its end; those in bfloat16, which NumPy lacks, as float32. In an account
        they are fetched first. Raises InputError where there are none, or a file is damaged."""
        from bamboo.checkpoint.tensor_file import arrays
        from bamboo.runs.final_state import wrong_with_final

        if why := wrong_with_final(self.folder):
            raise InputError(f"run {self.id} has no final state: {why}")
        found: dict[str, NDArray[Any]] = {}
        for file in sorted(self.folder.final.glob("stage-*.safetensors")):
            found |= arrays(file)
        return found

    def export(
        self, to: str | Path, *, step: int | None = None, format: str = "safetensors"
    ) -> dict[str, Any]:
        """Write what it has trained into a new folder, as `bamboo export` does: a Hugging Face
        model for `from_pretrained`, adapters for peft, any other as one file for `load_state_dict`
        of your own module; with the format `dcp` for torch.distributed.checkpoint. `step` names a
        checkpoint instead of its end. Raises InputError."""
        from bamboo.runs import afterwards

        return afterwards.export(self.folder, named_file(to, what="to"), step=step, form=format)

    def evaluate(
        self,
        source: str | Path | None = None,
        *,
        samples: int = 0,
        step: int | None = None,
        told: Told = untold,
    ) -> dict[str, Any]:
        """Loss and metrics of what it has trained, as `bamboo eval` shows them: on `python-stdlib`,
        or a path of text or tokens; without a source on what [eval] names. `samples` 0 are all.
        `told` is called with (microbatches done, of all). Raises InputError."""
        from bamboo.runs import afterwards

        where = source if source is None else named_file(source, what="source")
        return afterwards.evaluate(self.folder, source=where, samples=samples, step=step, told=told)

    def sample(
        self,
        prompt: str,
        *,
        length: int = 100,
        temperature: float = 1.0,
        seed: int = 0,
        tokenizer: str | Path | None = None,
        step: int | None = None,
        told: Told = untold,
    ) -> dict[str, Any]:
        """A text that begins with the prompt, as `bamboo sample` shows it: `text`, its `tokens`,
        and how many of them were the prompt's. `tokenizer` is a file, for a run that keeps none.
        Raises InputError."""
        from bamboo.runs import afterwards

        return afterwards.sample(
            self.folder,
            prompt,
            length=length,
            temperature=temperature,
            seed=seed,
            tokenizer=tokenizer,
            step=step,
            told=told,
        )


class Run(_Trained):
    """A run, by its folder."""

    __slots__ = ()

    @property
    def detached(self) -> bool:
        """Whether it goes on without its launcher: launched with --detach, or in an account."""
        from bamboo.sites.opened import outlives_its_launcher

        return outlives_its_launcher(self.folder)

    # ------------------------------------------------------------------ what it says

    def status(self) -> dict[str, Any]:
        """What `bamboo status --json` prints, without the disk: phase, step, nodes, and whether it
        has `ended`."""
        from bamboo.runs.run_status import status_of

        return status_of(self.folder)

    def disk_use(self) -> dict[str, int]:
        """Bytes on this machine's disk by part of the run, the largest first."""
        from bamboo.runs.removing import disk_use

        return disk_use(self.folder)

    def elsewhere(self) -> str:
        """Where it has files outside its folder, as a URL; "" where it has none."""
        from bamboo.runs.removing import in_bucket

        return in_bucket(self.folder)

    def cost(self) -> dict[str, Any]:
        """What `bamboo cost RUN --json` prints: dollars by now or in all, and where they went."""
        from bamboo.billing.run_cost import cost_of_run

        return cost_of_run(self.folder)

    def explain(self) -> "Explained":
        """How each of its parameters is synchronised, and why, as `bamboo explain RUN` shows it.
        Raises InputError where the run kept no facts of them."""
        from bamboo.study.explaining import explain_run

        return explain_run(self.folder)

    def metrics(self) -> Metrics:
        """The steps that are finished by now. Raises InputError for a damaged file."""
        from bamboo.telemetry.records import read_metrics

        return _metrics_of(read_metrics(self.folder.metrics))

    def evaluations(self) -> list[dict[str, Any]]:
        """The evaluations by now, each {step, loss, count, unit, metrics, seconds, at_s}. Raises
        InputError for a damaged file."""
        from bamboo.telemetry.records import read_evaluations

        return [asdict(one) for one in read_evaluations(self.folder.metrics)]

    def logs(self, *, node: str = "", follow: bool = False) -> Iterator[tuple[str, str]]:
        """Writer and line of every event and output, in the order of time; with `follow` until it
        has ended. `node` is an id or a prefix of one, or `launcher`, `cloud`, `store`. Raises
        InputError where there is no such log."""
        from bamboo.sites.run_logs import log_lines

        return log_lines(self.folder, node=node, follow=follow)

    def report(self) -> "Report":
        """What `bamboo report` draws. What its records do not have is named in `missing`."""
        from bamboo.study.report import report_of

        return report_of(self.folder, now_s=time.time())

    def receipt(self) -> dict[str, Any] | None:
        """What it did and cost, once it has ended; None before. Raises InputError for a damaged
        file."""
        if not self.folder.receipt.exists():
            return None
        return self.folder.read_json(self.folder.receipt)

    # ------------------------------------------------------------------ what is checked

    def verify(
        self, *, steps: tuple[int, int] | None = None, told: Told = untold
    ) -> dict[str, Any]:
        """Train it again calmly, in one process, and compare every bit: `equal`, and where it is
        false `first_difference`. `steps` (first, stop) checks that segment alone. It takes about as
        long as the run did. `told` is called with (step, steps). Raises InputError where there is
        nothing to compare."""
        from bamboo.runs import verifying

        if steps is not None:
            try:
                first, stop = map(index, steps)
            except (TypeError, ValueError):
                raise InputError(
                    f"steps = {shown(steps)}: is no segment; give two whole numbers, first and stop"
                ) from None
            return verifying.check_segment(self.folder, first, stop, told=told)
        return verifying.check_bits(self.folder, told=told)

    def verify_rented(
        self, *, agree: Callable[[str], bool], note: Note = silent, told: Told = untold
    ) -> dict[str, Any] | None:
        """As `verify`, on a machine of the account that is rented for it and given back; `rented`
        is its bill. `note` gets the price before, and the bill after; `agree` gets the question,
        and None is returned where it says no. Handles signals meanwhile, so the caller is the main
        thread. Raises InputError where nothing can be compared or rented, BambooError where the
        machine ended before it was done."""
        from bamboo.sites.account.rented_check import check_rented

        with private():
            return check_rented(self.folder, agree=agree, note=note, told=told)

    def verify_decisions(self) -> dict[str, Any]:
        """Recompute every membership decision from its log: `equal`, and `first_difference`. Raises
        InputError where there is nothing to recompute."""
        from bamboo.runs.decisions import check_decisions

        return check_decisions(self.folder)

    def verify_samples(self, *, told: Told = untold) -> dict[str, Any]:
        """Check that each sample was used exactly once: `equal`, and `first_difference`. Raises
        InputError before the run has ended."""
        from bamboo.runs import verifying

        return verifying.check_samples(self.folder, told=told)

    # ------------------------------------------------------------------ what is done to it

    def wait(self, *, timeout_s: float = inf, note: Note = silent) -> dict[str, Any]:
        """Wait for the end and return the receipt. A run that has lost its launcher gets another
        one, and `note` is told so. Raises BambooError after `timeout_s`, while the run goes on, and
        InputError for a run that ended without a receipt."""
        from bamboo.controller.attaching import keep_led

        if isnan(timeout_s):  # no time is later than that
            raise InputError("timeout_s = nan: is no time; give seconds, or leave it out")
        end_s = time.monotonic() + timeout_s
        look_at_s = 0.0
        detached = self.detached
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

    def attach(self, screen: "Screen") -> dict[str, Any]:
        """As `wait`, and show each decision and step on a screen of yours; see `bamboo.runs.ports`.
        Raises StoreUnavailable where its store does not come back."""
        from bamboo.controller.attaching import attend

        with private():
            return attend(self.folder, screen)

    def stop(self) -> str:
        """End it at its next step boundary, and return how it ended, as a sentence. Its state is
        kept, and `resume` goes on with it. Raises InputError where it does not live."""
        from bamboo.controller.stop_wish import stop_at_a_boundary

        with private():
            return stop_at_a_boundary(self.folder, no_wait=False)[1]

    def preempt(self, *, stage: int, pipeline: int = 0, notice_s: float = 0.0) -> str:
        """Take the instance that owns a stage, `notice_s` seconds after a notice; 0: without one.
        Returns a sentence that says which. Raises InputError where nobody owns it."""
        from bamboo.controller.preempting import preempt
        from bamboo.topology.slots import Slot

        return preempt(self.folder, Slot(pipeline=pipeline, stage=stage), notice_s=notice_s)

    def resume(
        self, *, overrides: Overrides = (), steps: int | None = None, note: Note = silent
    ) -> "Run":
        """Go on with a run that ended before its last step, from its newest good checkpoint; or
        with `steps` train it to so many in all. `overrides` may name another grid, redundancy,
        cloud or budget. A launcher process leads it, and this returns once it can be reached.
        Raises InputError where it goes on, is done, or would not be the same run."""
        from bamboo.runs.ports import NoteScreen

        screen = NoteScreen(note)
        asked = self.prepare_resume(overrides=overrides, steps=steps, screen=screen, note=note)
        with asked as ready:
            return ready.start(note=note)

    @contextmanager
    def prepare_resume(
        self,
        *,
        overrides: Overrides = (),
        steps: int | None = None,
        screen: "Screen",
        note: Note = silent,
        listens: bool = False,
    ) -> Iterator["Ready"]:
        """As `resume`, up to where something would be started: `start` or `lead` in the block goes
        on with the run. A part that has left no receipt gets it first, which `screen` is told;
        with `listens` Ctrl-C waits for that. `note` gets a line for whatever takes a while."""
        from bamboo.controller import resuming
        from bamboo.wiring.begun import Begun

        with private():
            ended_s = resuming.settle(self.folder, screen, listens=listens)
        with Begun() as begun:
            with private():
                resumed = resuming.prepare(
                    self.folder, written(overrides), begun, steps=steps, note=note
                )
            yield Ready(
                prepared=resumed.prepared,
                resumed=resumed,
                claim=lambda detached: (
                    self.folder,
                    resuming.claim(self.folder, resumed, ended_s=ended_s, detached=detached),
                ),
                begun=begun,
            )

    def why_not_removed(self) -> str:
        """Why its folder cannot be removed now, with the remedy; "" where it can."""
        from bamboo.runs.removing import why_not

        return why_not(self.folder)

    def remove(self) -> None:
        """Delete the folder of an ended run. Raises InputError where that is impossible."""
        from bamboo.runs.removing import remove

        remove(self.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A run that could be started now, or gone on with. Nothing was started for it; do it once."""

    prepared: "Prepared"
    """Its id, job and plan."""
    claim: "Callable[[bool | None], tuple[RunFolder, Lock]]"
    """Makes its files and becomes its launcher; given whether it is to be detached, None: as
    before."""
    begun: "Begun"
    resumed: "Resumed | None" = None
    """Where a run goes on from."""

    def start(self, *, note: Note = silent) -> Run:
        """Have a launcher process lead it, and return once it can be reached. Raises RunExists,
        InputError, BambooError."""
        from bamboo.controller import background

        with private():
            folder, held = self.claim(True)
            note(f"{folder.id}: starting in the background")
            background.start(folder, held, self.begun, fresh=True)
        return Run(folder)

    def lead(self, screen: "Screen") -> dict[str, Any]:
        """Lead it in this process to its end, and return its receipt. Handles signals meanwhile, so
        the caller is the main thread: the first Ctrl-C stops it at a step boundary, a second one at
        once. Raises RunExists, InputError, BambooError."""
        from bamboo.controller import launching

        with private():
            folder, held = self.claim(None if self.resumed is not None else False)
            try:
                return launching.run_attached(folder, screen, self.begun)
            finally:
                held.close()


# ---------------------------------------------------------------- which run


def open_run(run: str = "last") -> Run:
    """A run by its id, a unique prefix of it, or `last`. Raises InputError."""
    find_cloud()
    from bamboo.runs import run_folder

    return Run(run_folder.find(run_folder.home(), run))


def home() -> Path:
    """The folder of all runs."""
    from bamboo.runs import run_folder

    return run_folder.home()


def list_runs() -> list[dict[str, Any]]:
    """What `bamboo list --json` prints: a row for each run of this home."""
    find_cloud()
    from bamboo.runs import run_folder
    from bamboo.runs.removing import disk_use, total
    from bamboo.runs.run_status import row_of

    rows = [
        row_of(folder) | {"disk_bytes": total(disk_use(folder))}
        for folder in run_folder.all_runs(home())
    ]
    return [row for row in rows if (home() / row["run"]).exists()]  # some may go meanwhile


def old_runs(*, keep: int) -> list[Run]:
    """The runs that have ended and may be removed, oldest first, without the newest `keep`. Raises
    InputError for a negative number."""
    find_cloud()
    if keep < 0:
        raise InputError(f"keep = {keep}: is no number of runs; give 0 or more")
    from bamboo.runs import removing, run_folder

    return [Run(folder) for folder in removing.too_many(run_folder.own_runs(home()), keep)]


def stop_run(run: str, *, region: str = "", wait: bool = True, note: Note = silent) -> "Stopped":
    """Stop a run as `bamboo stop` does, also one of another machine, by its whole id and the
    `region` of the account that it is in; and make sure that nothing of it is left there. Raises
    InputError, BambooError."""
    find_cloud()
    from bamboo.controller.stop_anywhere import stop_run

    with private():
        return stop_run(run, region=region, wait=wait, note=note)


def stop_all(*, region: str = "", wait: bool = True, note: Note = silent) -> "Iterator[Stopped]":
    """Stop every run that lives, and all that carries the tag of one in a region, by default in the
    regions known here. What cannot be stopped says so in `error`, and the others are stopped."""
    find_cloud()
    from bamboo.controller.stop_anywhere import stop_all

    with private():
        yield from stop_all(region=region, wait=wait, note=note)
