"""Plays a case: preflight, the calm reference, and three runs in real processes.

A run is calm, or loses a node, or loses a node after a file was edited and a newcomer has come. The
processes are forks of two servers whose addresses and chance differ, as those of two machines do.
What a run must end with is what `verify` would find: the calm reference of the files as they were,
in another process.
"""

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file

from bamboo.checkpoint.final import tensor_sha256
from bamboo.config.load import job_to_json
from bamboo.config.resolve import resolve, semantics
from bamboo.config.tree import (
    ChaosConfig,
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.core.state import Phase
from bamboo.loading import steady_environment
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Strategy
from bamboo.user_code.bundle import CODE_FOLDER, write_bundle
from bamboo.user_code.manifest import Manifest
from testbed.cluster import Cluster
from testbed.forker import Forker, Process
from testbed.store_server import start_store
from tests.silent_ends.feature import Edit
from tests.silent_ends.generate import CONTEXT, DATA, GATE_STEP, MODEL, STAGES, STEPS, Case

DEADLINE_S = 30.0
"""For each part of a case: many times what it takes."""

Kind = Literal["equal", "refused", "fault", "different", "hangs", "broken"]
PLAYS = ("calm", "kill", "edit")
"""The last one leaves the files edited."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """How one play of a case ended."""

    play: str
    kind: Kind
    """equal: done, with the bits of the calm reference. refused: before anything was started.
    fault: a named end. different: done, with other bits. hangs: not within the deadline. broken:
    the look at the model ended without a word."""
    detail: str = ""
    newcomer_owned: bool = False
    """Whether what has come last computed some of it."""

    @property
    def bad(self) -> bool:
        """Whether no case may end like this."""
        return self.kind in ("different", "hangs", "broken")

    def __str__(self) -> str:
        return f"{self.play} {self.kind}{f': {self.detail}' if self.detail else ''}"


class Player:
    """Two fork servers and what is played with them; `close` ends them."""

    def __init__(self) -> None:
        with ThreadPoolExecutor() as pool:
            started = [
                pool.submit(Forker, "tests.silent_ends.entry", environment=steady_environment())
                for _ in range(2)
            ]
        self.forkers = [one.result() for one in started]

    def close(self) -> None:
        for forker in self.forkers:
            forker.close()

    def play(
        self, case: Case, plays: Sequence[str] = PLAYS, *, looked: bool = True
    ) -> list[Verdict]:
        """These plays of a case; one verdict alone where the model is refused. Not `looked`: as if
        a launch did not look at what layers do, nor took their code along."""
        with tempfile.TemporaryDirectory(prefix="bs-") as name:
            table = _Table(self, case, Path(name))
            refused = table.look("preflight" if looked else "facts")
            if refused is not None:
                return [refused]
            table.train_calmly()
            return [table.run(play) for play in plays]


class _Table:
    """One case laid out in a folder of its own."""

    def __init__(self, player: Player, case: Case, folder: Path) -> None:
        self.player, self.case, self.folder = player, case, folder
        self.model = folder / "model"
        self.seen: Mapping[str, Any] = {}
        self.code: Manifest | None = None
        """What a run takes along; None: each process reads the user's own files."""
        self.calm: list[Mapping[str, Any] | str] = []
        """What the reference gives, of the user's own files and of a copy; text where it failed."""
        self.lay_out()

    def lay_out(self) -> None:
        """All files as the case has them."""
        for path, text in self.case.files.items():
            file = self.model / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")

    def job(self, *, kill: bool = False) -> JobConfig:
        case = self.case
        return resolve(
            JobConfig(
                checkpoint=CheckpointConfig(every_steps=0),
                file=str(self.model / "job.toml"),
                model=ModelConfig(
                    model=f"{MODEL}:build", width=case.width, context=CONTEXT, dropout=0.0
                ),
                data=DataConfig(source="path", path=str(self.model / DATA)),
                train=TrainConfig(
                    steps=STEPS,
                    batch=8,
                    microbatch=2,
                    seed=case.seed,
                    warmup_steps=2,
                    learning_rate=1e-2,
                ),
                cluster=ClusterConfig(
                    stages=STAGES,
                    cut=case.cut,
                    redundancy="stash",
                    step_timeout_s=20.0,
                    device="virtual",
                    virtual_forward_ms=(1.0,),
                    virtual_backward_ms=(2.0,),
                ),
                chaos=ChaosConfig(kill=(case.kill,) if kill else ()),
            )
        )

    # ------------------------------------------------------------------ before a run

    def look(self, how: str) -> Verdict | None:
        """The look at the model that a launch takes; None: it may be trained."""
        status, answer, said = self._ask(how, 0)
        if status == 0 and answer:
            self.seen = json.loads(answer)
            if self.seen["code"] is not None:
                self.code = Manifest.from_dict(self.seen["code"])
                write_bundle(self.code, self.folder / CODE_FOLDER)
            return None
        if status == 2 and answer:
            return Verdict(play="launch", kind="refused", detail=json.loads(answer)["error"])
        detail = "no end" if status is None else f"status {status}: {said[-600:]}"
        return Verdict(play="launch", kind="broken", detail=detail)

    def train_calmly(self) -> None:
        """The calm reference, in a process of each server: of the files and of their copy."""
        for index, code in enumerate(("", CODE_FOLDER if self.code else "")):
            status, answer, said = self._ask("calm", index, str(self.folder / code) if code else "")
            self.calm.append(json.loads(answer) if status == 0 else said[-300:])

    def _ask(self, what: str, index: int, code: str = "") -> tuple[int | None, str, str]:
        """Exit status (None: it did not end), answer and log of a process that is asked once."""
        file, log = self.folder / f"{what}{index}.json", self.folder / f"{what}{index}.log"
        config = {
            "job": job_to_json(replace(self.job(), code=code)),
            "answer": str(file),
            "folder": str(self.model),
            "called": what,
            "environment": json.dumps({"MODEL_GAIN": "1.5"}),
        }
        entry = f"tests.silent_ends.entry:{what}"
        process = self.player.forkers[index].start(config, log, entry)
        status = process.status(DEADLINE_S)
        process.close()
        answer = file.read_text(encoding="utf-8") if file.exists() else ""
        return status, answer, log.read_text(encoding="utf-8") if log.exists() else ""

    # ------------------------------------------------------------------ runs

    def run(self, play: str) -> Verdict:
        """One run from its start to its end."""
        with self._cluster(play) as run:
            run.start(STAGES)
            if play == "edit":
                self._edit(run, self.case.edit)
            return self._end(run, play)

    def _edit(self, run: "_Run", edit: Edit) -> None:
        """Once training has begun, one file is another one; then a newcomer comes."""
        reached = f"step {GATE_STEP - 1}"
        run.wait(lambda s: s.phase is Phase.FINISHED or bool(run.losses()), DEADLINE_S, reached)
        file = self.model / edit.path
        before = file.stat() if edit.same_time else None
        if edit.text is None:
            file.unlink(missing_ok=True)
        else:
            file.write_text(edit.text, encoding="utf-8")
        if before is not None:
            os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
        newcomer = run.start_one()

        def settled(state: Any) -> bool:
            joined = any(node.id == newcomer for node in state.nodes)
            return state.phase is Phase.FINISHED or joined or run.ended(newcomer)

        run.wait(settled, DEADLINE_S, "the newcomer")
        run.gate.touch()

    def _end(self, run: "_Run", play: str) -> Verdict:
        try:
            state = run.wait(lambda s: s.phase is Phase.FINISHED, DEADLINE_S, "the end")
        except AssertionError:
            return Verdict(play=play, kind="hangs", detail=run.report()[-3000:])
        if state.outcome != "done":
            return Verdict(play=play, kind="fault", detail=f"{state.outcome}: {state.sentence}")
        for process in run.processes.values():
            process.status(DEADLINE_S)
        difference = self._difference(run)
        return Verdict(
            play=play,
            kind="different" if difference else "equal",
            detail=difference,
            newcomer_owned=run.newcomer_owned(),
        )

    def _difference(self, run: "_Run") -> str:
        losses = run.losses()
        found = {
            name: tensor_sha256(tensor)
            for file in sorted((run.directory / "final").glob("*.safetensors"))
            for name, tensor in load_file(file).items()
        }
        for calm in self.calm:
            if isinstance(calm, str):
                return f"the calm reference fails: {calm}"
            for step, loss in enumerate(calm["losses"]):
                if losses.get(step) != loss:
                    return f"loss of step {step}: {losses.get(step)} is not {loss}"
            expected = calm["tensors"]
            for name in sorted(expected.keys() | found.keys()):
                if found.get(name) != expected.get(name):
                    return f"tensor {name}"
        return ""

    @contextlib.contextmanager
    def _cluster(self, play: str) -> Iterator["_Run"]:
        folder = self.folder / play
        folder.mkdir()
        job = self.job(kill=play != "calm")
        if self.code is not None:
            write_bundle(self.code, folder / CODE_FOLDER)
            job = replace(job, code=str(folder / CODE_FOLDER))
        server = start_store(folder)
        try:
            run = _Run(self, folder, job, server)
            if play != "edit":
                run.gate.touch()
            try:
                yield run
            finally:
                run.close()
        finally:
            server.stop()


class _Run(Cluster):
    """A cluster that never loads the user's code in this process, and forks from both servers."""

    def __init__(self, table: _Table, folder: Path, job: JobConfig, server: Any) -> None:
        self.table, self.gate = table, folder / "gate"
        super().__init__(folder, job, server, "tests.silent_ends.entry:worker")

    def _cuts(self) -> list[tuple[int, ...]]:
        layers = len(self.table.seen["layers"])
        return [(0, layers // 2, layers), self._strategy().placement.cut]

    def _strategy(self) -> Strategy:
        job, seen = self.job, self.table.seen
        return Strategy(
            semantics=semantics(
                job,
                data_digest=seen["data_digest"],
                code=self.table.code.identity() if self.table.code else {},
            ),
            placement=Placement(
                cut=(*job.cluster.cut, len(seen["layers"])),
                grid=Grid(pipelines=1, stages=job.cluster.stages),
                redundancy=job.cluster.redundancy,
            ),
        )

    def fork(self, config: Mapping[str, str], log: Path) -> Process:
        number = len(self.processes)
        environment = {"NODE_RANK": str(number)}
        if number < STAGES:
            environment["MODEL_GAIN"] = "1.5"
        more = {
            "gate": f"{GATE_STEP},{self.gate}",
            "folder": str(self.table.model if self.table.case.in_folder else self.directory),
            "called": "worker",
            "environment": json.dumps(environment),
        }
        forkers = self.table.player.forkers
        return forkers[number % len(forkers)].start({**config, **more}, log, self.entry)

    def newcomer_owned(self) -> bool:
        """Whether the last that has come owned a stage at some time."""
        newcomer = list(self.processes)[STAGES:]
        states = [decision.state.assignment for decision in self.decisions()]
        return any(owner in newcomer for one in states if one is not None for owner in one.owners)

    def ended(self, node: str) -> bool:
        """Whether the process of a node has ended."""
        return self.processes[node].status() is not None
