"""Shortens a failing scenario: fewer faults, a smaller world, rounder figures.

Rule: a shorter scenario must fail in the same checker. First the faults are halved away (Zeller and
Hildebrandt, Simplifying and Isolating Failure-Inducing Input, 2002), then each parameter is set to
its default where possible. The budget of plays limits the search.
"""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

from testbed.swarm.run import Verdict, play
from testbed.swarm.scenario import Fault, Scenario, to_text

PLAYS = 600


class Shrinker:
    """Shrinks one scenario that failed in `checker`."""

    def __init__(self, scenario: Scenario, checker: str, *, plays: int = PLAYS) -> None:
        self._best, self._checker, self._left = scenario, checker, plays

    def shrink(self) -> Scenario:
        """The shortest scenario found."""
        while self._left > 0:
            before = self._best
            self._fewer_faults()
            self._simpler()
            self._rounder()
            if self._best == before:
                break
        return self._best

    def _keep(self, scenario: Scenario) -> bool:
        """Keep the scenario if it fails in the same way."""
        if scenario == self._best or self._left <= 0:
            return False
        self._left -= 1
        if play(scenario).checker != self._checker:
            return False
        self._best = scenario
        return True

    def _fewer_faults(self) -> None:
        size = max(1, len(self._best.faults) // 2)
        while self._left > 0:
            at = 0
            while at < len(self._best.faults):
                faults = self._best.faults
                if not self._keep(replace(self._best, faults=faults[:at] + faults[at + size :])):
                    at += size
            if size == 1:
                return
            size //= 2

    def _simpler(self) -> None:
        usual = Scenario()
        for field in fields(Scenario):
            if field.name not in ("seed", "faults", "heal_s", "steps"):
                self._keep(replace(self._best, **{field.name: getattr(usual, field.name)}))
        for changes in self._smaller():
            self._keep(replace(self._best, **changes))

    def _smaller(self) -> Iterator[dict[str, Any]]:
        yield {"pipelines_max": self._best.pipelines}
        for pipelines in range(1, self._best.pipelines):
            yield {"pipelines": pipelines, "pipelines_max": pipelines}
        for stages in range(2, self._best.stages):
            yield {"stages": stages, "layers": stages}
        yield {"layers": self._best.stages}
        for standbys in range(self._best.standbys):
            yield {"standbys": standbys}
        for steps in (4, 8, 12, 16, 20):
            if steps < self._best.steps:
                yield {"steps": steps}
        last_s = max((fault.at_s for fault in self._best.faults), default=1.0)
        for extra_s in (0.1, 1.0, 3.0):
            if last_s + extra_s < self._best.heal_s:
                yield {"heal_s": round(last_s + extra_s, 1)}

    def _rounder(self) -> None:
        for at, fault in enumerate(self._best.faults):
            for simple in _simpler_faults(fault):
                faults = self._best.faults
                self._keep(replace(self._best, faults=(*faults[:at], simple, *faults[at + 1 :])))


def _simpler_faults(fault: Fault) -> Iterator[Fault]:
    for who in range(min(fault.who, 6)):
        yield replace(fault, who=who)
    if fault.for_s:
        yield replace(fault, for_s=float(round(fault.for_s)))
    yield replace(fault, at_s=round(fault.at_s, 1))


def shrunk(scenario: Scenario, verdict: Verdict, *, plays: int = PLAYS) -> tuple[Scenario, str]:
    """A short scenario that fails as `verdict` says, and its text with a comment on the failure."""
    short = Shrinker(scenario, verdict.checker, plays=plays).shrink()
    again = play(short)
    where = f" ({again.where})" if again.where else ""
    comments = (
        f"Shrunk from seed {scenario.seed}: {len(short.faults)} of {len(scenario.faults)} faults.",
        f"{again.checker}{where}, {again.at_s:g} s: {again.sentence}",
    )
    return short, to_text(short, comments)
