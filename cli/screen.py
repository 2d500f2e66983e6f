"""Where a launch shows its progress: a live screen in a terminal, plain lines elsewhere.

Both show the same. The views have all of the text.
"""

import json
from collections.abc import Mapping
from types import TracebackType
from typing import Any

import click
from rich.console import Console
from rich.live import Live

from bamboo.controller.launching import Prepared
from bamboo.coord.follow import Decision
from bamboo.core.events import NodeFailed
from bamboo.runs.preemption_lines import preemption_line, short_preemption_line
from bamboo.runs.progress import Progress
from cli.echo import echo, fold, paragraph, printable, terminal_width
from cli.views.brief import end_lines, plan_lines
from cli.views.live import (
    brief_decision_line,
    briefly_told_of,
    decision_line,
    evaluation_line,
    forming_line,
    screen,
    step_line,
    told_of,
)
from cli.views.plan import plan_text, quota_text
from cli.views.receipt import receipt_text, summary_text
from cli.views.trace import trace_text

verbose_option = click.option(
    "--verbose", is_flag=True, help="Show the whole plan, every decision and the whole receipt."
)
PLAIN_STEP_LINES = 20
"""About how many step lines, and at most how many of evaluations, a whole run prints."""
REDRAW_EVERY_S = 0.25
SLOW_START_S = 10.0
"""A plain screen says how far a start is that takes longer, and again each time that it has taken
AGAIN times as long."""
AGAIN = 3


class PlainScreen:
    """One line for each preemption and every few steps; with `verbose` one for each event."""

    def __init__(self, *, to_stderr: bool = False, verbose: bool = False) -> None:
        self._to_stderr = to_stderr
        self._verbose = verbose
        self._told: dict[str, str] = {}
        self._evaluated = 0
        self._forming_due_s = SLOW_START_S

    def __enter__(self) -> "PlainScreen":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def decided(self, progress: Progress, decision: Decision) -> None:
        told_by, line_of = briefly_told_of, brief_decision_line
        if self._verbose:
            told_by, line_of = told_of, decision_line
        if told := told_by(decision.state, decision.event, decision.reason):
            self.note(line_of(progress, told))

    def stepped(self, progress: Progress) -> None:
        every = max(1, progress.steps // PLAIN_STEP_LINES)
        if progress.step % every == 0 or progress.step in (1, progress.steps):
            self.note(step_line(progress))

    def evaluated(self, progress: Progress) -> None:
        found = progress.evaluation
        if found is not None and found.step >= self._evaluated + progress.steps // PLAIN_STEP_LINES:
            self._evaluated = found.step
            self.note(evaluation_line(progress))

    def turned(self, progress: Progress) -> None:
        """Print what a preemption cost once its last figure is known, and how far a start is that
        takes a while."""
        passed_s = progress.now_s - progress.started_at_s
        if (
            not self._verbose
            and passed_s >= self._forming_due_s
            and (line := forming_line(progress))
        ):
            self._forming_due_s = AGAIN * passed_s
            self.note(line)
        for preemption in progress.preemptions:
            if preemption.seen_pause_s is None or not preemption.parts_s:
                continue
            line = short_preemption_line(preemption, progress)
            if self._verbose:
                line = preemption_line(preemption)
            if self._told.get(preemption.node) != line:
                self._told[preemption.node] = line
                self.note(line)

    def note(self, text: str) -> None:
        echo(text, err=self._to_stderr)

    def detail(self, text: str) -> None:
        if self._verbose:
            self.note(text)


class LiveScreen:
    """A rich screen, redrawn a few times a second; notes stay above it. It disappears at the end,
    since the summary that follows has the same and more."""

    def __init__(self, console: Console, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._drawn_at_s = 0.0

    def __enter__(self) -> "LiveScreen":
        self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.stop()

    def decided(self, progress: Progress, decision: Decision) -> None:
        if isinstance(decision.event, NodeFailed):  # shown when the next decision has come
            self.note(decision_line(progress, decision.reason))
        self._draw(progress)

    def stepped(self, progress: Progress) -> None:
        return None

    def evaluated(self, progress: Progress) -> None:
        self._draw(progress)

    def turned(self, progress: Progress) -> None:
        if progress.now_s - self._drawn_at_s >= REDRAW_EVERY_S:
            self._draw(progress)

    def note(self, text: str) -> None:
        self._live.console.print(printable(text), highlight=False, markup=False)

    def detail(self, text: str) -> None:
        if self._verbose:
            self.note(text)

    def _draw(self, progress: Progress) -> None:
        self._drawn_at_s = progress.now_s
        self._live.update(screen(progress), refresh=True)


def plan_said(prepared: Prepared, *, verbose: bool) -> list[str]:
    """The plan before a start, each item a line or several."""
    planned = prepared.planned
    played = prepared.trace
    if not verbose:
        return plan_lines(
            prepared.run,
            planned,
            played=played,
            weights=prepared.weights,
            logs_to=prepared.logs_to,
            upload_bytes=prepared.upload_bytes,
        )
    said = [quota_text(planned)] if prepared.job.cloud.provider != "local" else []
    said.append(plan_text(prepared.run, planned))
    if prepared.begins:
        said += paragraph(prepared.begins)
    said += [line for one in prepared.in_bucket for line in paragraph(one.sentence())]
    said += [f"  logs to {name}: {place}" for name, place in prepared.logs_to.items()]
    return said if played is None else [*said, trace_text(played)]


def end_text(body: Mapping[str, Any], *, verbose: bool) -> str:
    """What is printed on standard output at the end of a run, from its receipt. In a terminal it is
    folded, so that it can be read there."""
    if not verbose:
        return "\n".join(end_lines(body))
    text, width = summary_text(body) + "\n" + receipt_text(body), terminal_width()
    return text if width is None else fold(text, width=width)


def detached_text(run: str, *, as_json: bool) -> str:
    """What is printed when a run goes on without this terminal."""
    if as_json:
        return json.dumps({"run": run, "detached": True})
    return (
        f"{run} goes on in the background\n"
        f"  bamboo attach {run}   watches it\n"
        f"  bamboo stop {run}   ends it at a step boundary"
    )


def open_screen(*, terminal: bool, to_stderr: bool, verbose: bool) -> PlainScreen | LiveScreen:
    """The screen for this standard output; a context manager either way. Plain lines go to standard
    error where standard output is reserved for one JSON object."""
    if terminal:
        return LiveScreen(Console(), verbose=verbose)
    return PlainScreen(to_stderr=to_stderr, verbose=verbose)
