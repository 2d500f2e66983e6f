"""The launcher's side of a run that chooses its own size. `planner.fleet.scaler` decides. This
file hands it what the launcher sees, carries out its decisions and records them in the books.

Rule: every resize is in the books and in the ledger, with its sentence and with everything that was
known, so that a later launcher continues from it.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bamboo.billing.ledger import Accounts
from bamboo.billing.money import Rented
from bamboo.config.resolve import nodes_at_begin
from bamboo.config.tree import JobConfig
from bamboo.controller.ports import APPEND_DEADLINE_S, Ports
from bamboo.core.state import Policy, State
from bamboo.planner.fleet.autoscale import Scaling
from bamboo.planner.fleet.scaler import Hired, Scaler, Standing, Turn
from bamboo.runs.books import RESIZED, SIZE_KEPT, Booked
from bamboo.runs.progress import Progress
from bamboo.study.scaler_terms import terms_of

PACED_BY = "paced_by"
"""The field next to the step times that says what they depend on."""


def paced_by(job: JobConfig) -> dict[str, Any]:
    """What decides the time of a step, apart from the number of nodes, and may change in a resume.
    As JSON stores it."""
    cluster = job.cluster
    return {
        "stages": cluster.stages,
        "cut": list(cluster.cut),
        "standbys": cluster.standbys,
        "redundancy": cluster.redundancy,
        "device": cluster.device,
        "instance_types": list(job.cloud.instance_types),
    }


class Autoscaler:
    """The autoscaler of one launcher. `booked` is what earlier launchers wrote, `led_before_s` how
    long the earlier parts of the run lasted."""

    def __init__(
        self, job: JobConfig, policy: Policy, booked: Booked, *, led_before_s: float = 0.0
    ) -> None:
        self._job = job
        self._led_before_s = led_before_s
        known = None
        if booked.scaling is not None:
            known = Scaling.of_body(booked.scaling)
            if booked.scaling_part != booked.part:  # a new part starts with its own size
                same = booked.scaling.get(PACED_BY) == paced_by(job)
                known = Scaling(nodes=nodes_at_begin(job), times_s=known.times_s if same else ())
        self._scaler = Scaler(terms_of(job, policy), known, after_s=booked.scaled_at_s)

    @property
    def scaling(self) -> Scaling:
        """Everything that the scaler knows."""
        return self._scaler.scaling

    @property
    def sentence(self) -> str:
        """Its present state as a sentence for people."""
        sizes = ", ".join(map(str, self._scaler.terms.rule.sizes))
        return f"autoscale: {self.scaling.nodes} nodes now, of {sizes}"

    def to_body(self) -> dict[str, Any]:
        """Everything that the scaler knows, and of which part of the run, for `Booked.scaling`."""
        return self.scaling.to_body() | {PACED_BY: paced_by(self._job)}

    def decided(self, state: State, at_s: float) -> None:
        """Take in a decision. Called for every decision, in order."""
        self._scaler.decided(state, at_s)

    def stepped(self, step: int, at_s: float) -> None:
        """Take in a finished step. Called for every one."""
        self._scaler.stepped(step, at_s)

    def turn(self, progress: Progress, rented: Sequence[Rented], *, now_s: float) -> Turn:
        """Decide from everything that was taken in so far."""
        standing = Standing(
            passed_s=self._led_before_s + now_s - progress.started_at_s,
            step=progress.step,
            steps=progress.steps,
            usd=progress.usd + progress.beside_usd,
        )
        hired = [
            Hired(
                instance=one.instance,
                started_at_s=one.started_at_s,
                usd_per_hour=one.usd_per_hour,
            )
            for one in rented
            if one.ended_at_s is None
        ]
        return self._scaler.turn(progress.state, standing, hired, now_s=now_s)


def scale(scaler: Autoscaler, ports: Ports, progress: Progress, accounts: Accounts) -> int:
    """One turn of a launcher: record what the scaler decides and carry it out. Returns how many
    nodes to keep. Raises StoreUnavailable."""
    turn = scaler.turn(progress, ports.fleet.rented(), now_s=ports.now())

    def book(kind: str, data: dict[str, Any]) -> None:
        told = data | {"scaling": scaler.to_body()}
        ports.books.event(kind, progress, at_s=ports.now(), data=told)

    if turn.resize is not None:
        book(RESIZED, {"resize": asdict(turn.resize)})
        accounts.resized(turn.resize)
        ports.screen.note(turn.resize.reason)
    elif turn.kept:
        book(SIZE_KEPT, {"nodes": scaler.scaling.nodes})
    for instance in turn.spare:
        ports.fleet.terminate(instance, reason="no more nodes are wanted, and no node came from it")
    if turn.release is not None:
        ports.append(turn.release, deadline_s=APPEND_DEADLINE_S)
    return turn.nodes
