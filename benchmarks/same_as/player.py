"""Plays one part of the comparison in the checkout that it is started in, and prints the answers.

    python player.py ASKED    (a JSON file, see `main`; the folder it runs in is the checkout)

Rule: it is the same file for both sides. It imports nothing of this package, takes the program and
its test tools from the checkout, and has one small table of what lies elsewhere there. The words of
the older side are renamed here, before anything is hashed, so that answers can be held equal.
"""

import contextlib
import hashlib
import importlib
import io
import itertools
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

ELSEWHERE = {
    "bamboo.runtime.node.preempt": "bamboo.runtime.preempt",
    "bamboo.billing.money": "cli.money",
    "bamboo.wiring": "cli.wiring",
    "testbed.simulated": "tests.runtime.simulated",
    **{
        f"testbed.swarm.{name}": f"bamboo.sim.swarm.{name}"
        for name in ("cluster", "run", "scenario", "red", "draw", "member")
    },
}
"""Modules of this side, and what the older side calls them."""
KEPT_RUNS = ("tests/billing/kept/spent", "tests/cli/kept/spent")
"""A recorded run, by side."""
Answer = dict[str, Any]
Asked = Mapping[str, Any]
Cases = Iterator[tuple[str, Answer, list[str]]]
OLDER_RUN = "older run"
"""The case that is no equality: how a run folder of the older side is refused."""
TEXTS = (".json", ".jsonl", ".toml")
MOST_ACTIONS = 5_000_000
Given = dict[str, Any]
"""By case, what the older side drew or measured: both sides play the same."""


class Words:
    """Values as text, in the words of the newer side and without what is dropped on purpose."""

    def __init__(self, asked: Asked) -> None:
        self.old = asked["side"] == "old"
        self._names: dict[str, str] = asked["names"] if self.old else {}
        self._phrases: dict[str, str] = asked["phrases"] if self.old else {}
        self._new_names = set(asked["names"].values())
        self._dropped = {tuple(name.split(".")) for name in asked["dropped_fields"]}
        self.met: set[str] = set()
        """Entries of the map and of the intended differences that were needed."""
        self.taken: set[str] = set()
        """New names that the older side has for something else: the map would not be one-to-one."""
        self._known: dict[int, tuple[Any, str]] = {}
        spelled = "|".join(map(re.escape, self._phrases))
        self._phrase = re.compile(rf"\b(?:{spelled})\b") if spelled else None

    def name(self, name: str) -> str:
        if name in self._names:
            self.met.add(name)
            return self._names[name]
        if self.old and name in self._new_names:
            self.taken.add(name)
        return name

    def sentence(self, text: str) -> str:
        if self._phrase is None:
            return text
        self.taken.update(word for word in self._phrases.values() if word in text)
        return self._phrase.sub(self._renamed, text)

    def _renamed(self, found: re.Match[str]) -> str:
        self.met.add(found.group())
        return self._phrases[found.group()]

    def text(self, value: Any) -> str:
        """A value, whole. Frozen values come up again and again: their text is kept by identity."""
        if isinstance(value, (bool, int, float)) or value is None:
            return repr(value)
        if isinstance(value, Enum):
            return self.name(str(value.value))
        if isinstance(value, str):
            return repr(self.sentence(value))
        known = self._known.get(id(value))
        if known is None:
            known = self._known[id(value)] = (value, self._text(value))
        return known[1]

    def _text(self, value: Any) -> str:
        if is_dataclass(value):
            kind = type(value).__name__
            shown = [
                f"{self.name(f.name)}={self.text(getattr(value, f.name))}"
                for f in fields(value)
                if not self._drops_field(kind, f.name)
            ]
            return f"{self.name(kind)}({', '.join(sorted(shown))})"
        if isinstance(value, Mapping):
            return f"{{{', '.join(f'{self.text(k)}: {self.text(v)}' for k, v in value.items())}}}"
        if isinstance(value, (set, frozenset)):
            return f"{{{', '.join(sorted(map(self.text, value)))}}}"
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(self.text, value))}]"
        raise TypeError(f"no text for {value!r}")

    def _drops_field(self, kind: str, field: str) -> bool:
        if (kind, field) not in self._dropped:
            return False
        self.met.add(f"{kind}.{field}")
        return True

    def module(self, name: str) -> Any:
        """The module that this side calls so, from the checkout."""
        return importlib.import_module(ELSEWHERE.get(name, name) if self.old else name)

    def forget(self) -> None:
        """Another case begins, with values of its own."""
        self._known.clear()


def digest(lines: Iterable[str]) -> str:
    """What is compared of a case's text; the text itself is shown on demand."""
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


# ------------------------------------------------------------------------------ the parts


def swarm(asked: Asked, words: Words, given: Given) -> Cases:
    """Decisions of seeded worlds. The older side draws them and says their texts, and both sides
    play the texts: seeds of the newer side draw worlds that the older one cannot have."""
    cluster, run, scenario, red, draw = (
        words.module(f"testbed.swarm.{name}")
        for name in ("cluster", "run", "scenario", "red", "draw")
    )
    if not words.old:
        _nobody_attests(cluster, words)
    for seed in map(str, asked["cases"]):
        if seed not in given:
            given[seed] = scenario.to_text(draw.draw(int(seed)))
        drawn = scenario.from_text(given[seed])
        world, verdict = cluster.Cluster(drawn), "green"
        try:
            world.agenda.run(
                until_s=drawn.heal_s + run.AFTER_S + 6 * drawn.steps * drawn.step_s,
                over=lambda world=world: world.is_over,
            )
            world.checkers.over(world.log.state)
        except red.Red as found:
            verdict = f"red: {found.checker}"
        lines = []
        for entry in world.log.entries:
            event, reason = words.text(entry.event), words.sentence(entry.reason)
            decided = words.text(entry.effects), words.text(entry.state)
            lines.append("\n".join(("", event, reason, *decided)))
        yield seed, {"verdict": verdict, "entries": len(lines), "decisions": digest(lines)}, lines


def _nobody_attests(cluster: Any, words: Words) -> None:
    """Let the worlds begin as a run whose numerics are known, and let nodes say nothing of theirs:
    what they would say comes before they join, and would move every version by one."""
    core = words.module("bamboo.core.state")
    member = words.module("testbed.swarm.member").Member
    facts = (core.Fact(name="device", value="a card"),)
    honest = cluster.initial_state
    known = core.Attestation(node="", numerics=facts)
    cluster.initial_state = lambda **given: honest(**given, attested=known)
    member.attest = lambda self, numerics: setattr(self, "numerics", numerics)


def transcripts(asked: Asked, words: Words, given: Given) -> Cases:
    """Every transcript that the older side has, by name: its text, and what is decided now."""
    play = words.module("tests.core.transcript").play
    for file in sorted(Path("tests/core/scenarios").rglob("*.txt")):
        text = file.read_text(encoding="utf-8")
        lines = [words.sentence(text), words.sentence(play(text))]
        answer = {"transcript": digest(lines), "as_written": play(text) == text}
        yield file.stem, answer, lines


class Killed(BaseException):
    """A planted SIGKILL; no code of the program may catch it."""


def _killing(due: list[Any], words: Words) -> Any:
    """The simulated runs of the tests, with the kills in `due` planted as a job's are."""
    simulated = words.module("testbed.simulated")
    preempt = words.module("bamboo.runtime.node.preempt")
    honest_turn, honest_step, dead = simulated.Node.turn, simulated.World.step, []

    def vanish(*_: object) -> None:
        raise Killed

    def turn(node: Any, loops: int) -> None:
        try:
            honest_turn(node, loops)
        except Killed:
            dead.append(node.id)

    def step(world: Any) -> None:
        honest_step(world)
        while dead:
            world.kill(dead.pop())

    simulated.Preemptions = lambda _, **given: preempt.Preemptions(due, **given)
    preempt.Preemptions._vanish = vanish
    simulated.Node.turn, simulated.World.step = turn, step
    time.monotonic = lambda: simulated.NOW_S  # pauses stand in reasons
    return simulated


def matrix(asked: Asked, words: Words, given: Given) -> Cases:
    """Kills at every mode, stage and phase, with the small job of `test_interleavings`: real
    trainers and tensors in one thread, in an order that the seed draws."""
    tests = words.module("tests.runtime.test_interleavings")
    tree = words.module("bamboo.config.tree")
    due: list[Any] = []
    simulated = _killing(due, words)
    phases = ("forward", "backward", "exchange", "ship", "step")
    cells = list(itertools.product(("stash", "gap", "eager", "full"), range(4), phases, (1, 2)))
    for seed in asked["cases"]:
        mode, stage, phase, pipelines = cells[seed % len(cells)]
        draw = random.Random(f"kill {seed}")
        shape = {"stages": 4, "pipelines": pipelines, "virtual_nodes": 4}
        settings = tests.job(redundancy=mode, check_replicas=seed % 3 == 0, **shape)
        step, pipeline, microbatch = map(draw.randrange, (tests.STEPS, pipelines, 2))
        at = {"phase": phase, "step": step, "pipeline": pipeline, "stage": stage}
        due[:] = [tree.Kill(microbatch=microbatch, **at)]
        world = simulated.World(settings, random.Random(seed))
        world.run(until=lambda: False)
        tests.calmly(world, settings)
        answer, lines = _of_world(world, words)
        assert answer["lost"] == 1, f"seed {seed} killed {answer['lost']} nodes"
        yield str(seed), answer, lines


SMALL = ("model.width=32", "model.heads=2", "model.context=16")


def golden(asked: Asked, words: Words, given: Given) -> Cases:
    """The example job with its three preemptions, by real processes; and a smaller one of the same
    grid, kills and notice in one thread, where the order of decisions is the same every time."""
    job = Path(asked["inputs"], "gpt-local.toml")
    codec = words.module("bamboo.coord.codec")
    with tempfile.TemporaryDirectory() as home:
        os.environ["BAMBOO_HOME"] = home
        refusal: Answer = {"schema": codec.SCHEMA_VERSION}
        run = Path(home, "golden")
        if words.old:
            _launch(job)
            given.update({f.name: f.read_text() for f in run.iterdir() if f.suffix in TEXTS})
        else:
            run.mkdir(mode=0o700)
            for name, text in given.items():
                (run / name).write_text(text)
            refusal["exit"], refusal["said"] = command(words, "verify", "golden", "--decisions")
            shutil.rmtree(run)
            _launch(job)
        yield OLDER_RUN, refusal, []
        yield "by processes", _of_folder(run, words), []
    load_job = words.module("bamboo.config.load").load_job
    events = words.module("bamboo.core.events")
    settings = load_job(job, SMALL)
    due = list(settings.chaos.kill)
    simulated = _killing(due, words)
    world = simulated.World(settings, random.Random(1), standbys=3)
    for node in world.standbys:
        world.join(node)
    noticed = next(kill for kill in due if kill.notice_s)
    world.run(until=lambda: len(world.losses()) > noticed.step, limit=MOST_ACTIONS)
    owner = world.state.assignment.owner(world.state.grid.pipeline(0)[noticed.stage])
    deadline_s = simulated.NOW_S + noticed.notice_s
    world.commit(events.NoticeReceived(node=owner, deadline_s=deadline_s))
    world.run(until=lambda: False, limit=MOST_ACTIONS)
    world.settle()
    yield "in one thread", *_of_world(world, words)


def _launch(job: Path) -> None:
    words = [sys.executable, "-m", "cli.main", "launch", str(job), "--run", "golden"]
    subprocess.run(words, check=True, stdout=sys.stderr, timeout=1800)


def _of_folder(run: Path, words: Words) -> Answer:
    """What does not depend on how fast the machine is: bits, losses, and who was lost where."""
    load_file = words.module("safetensors.torch").load_file
    tensors: dict[str, Any] = {}
    for file in (run / "final").glob("*.safetensors"):
        tensors |= load_file(file)
    receipt = json.loads((run / "receipt.json").read_text())
    steps = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    lost = []
    for one in receipt["preemptions"]:
        # A notice is kept at the boundary that comes next, whichever that is.
        step = "" if one["noticed"] else f" in step {one['step']}"
        lost.append(f"{' '.join(one['slots'])} noticed {one['noticed']}{step}")
    return {
        "outcome": receipt["outcome"],
        "lost": lost,
        "losses": [step["loss_hex"] for step in steps],
        "bits": _bits(sorted(tensors.items()), words),
    }


def _of_world(world: Any, words: Words) -> tuple[Answer, list[str]]:
    lines = [words.sentence(reason) for reason in world.reasons]
    for state, effects in world.log:
        lines += [words.text(effects), words.text(state)]
    lost = sum(not node.alive for node in world.nodes.values())
    tensors = [
        (f"{pipeline} {name}", tensor)
        for pipeline in range(world.state.grid.pipelines)
        for name, tensor in sorted(world.tensors(pipeline).items())
    ]
    losses = [loss for _, loss in sorted(world.losses().items())]
    return {
        "outcome": str(world.state.outcome),
        "lost": lost,
        "decisions": digest(lines),
        "losses": losses,
        "bits": _bits(tensors, words),
    }, lines


def _bits(tensors: Iterable[tuple[str, Any]], words: Words) -> str:
    """One digest of all parameters and moments, with their names and types."""
    torch = words.module("torch")
    found = hashlib.sha256()
    for name, tensor in tensors:
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        found.update(f"{name} {tensor.dtype}".encode() + flat.numpy().tobytes())
    return found.hexdigest()[:16]


def command(words: Words, *arguments: str) -> tuple[int, str]:
    """The command line in this process: its exit status, and what it prints as its answer."""
    main = words.module("cli.main")
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()) as errors:
        status = main.run(list(arguments))
    return status, out.getvalue() or errors.getvalue()


def simulations(asked: Asked, words: Words, given: Given) -> Cases:
    """`bamboo simulate --json`, over jobs, markets, modes and seeds: every figure."""
    examples, wiring = asked["inputs"], words.module("bamboo.wiring")
    measured = wiring.run_preflight

    def preflight(job: Any, **_: object) -> Any:
        """A job is looked at once: on a busy machine its layers take other times each time."""
        name = Path(job.file).name
        if name not in given:
            given[name] = measured(job)
        return given[name]

    wiring.run_preflight = preflight
    modes = ("stash", "gap", "eager", "full", "off")
    for case in asked["cases"]:
        draw = random.Random(f"simulate {case}")
        job = draw.choice(("chaos-local", "trace-local"))
        options = f"--set cluster.redundancy={modes[case % 5]} --set train.steps=20000"
        if case % 5 == 4:
            options += f" --trace {examples}/spot-market.csv --times {draw.choice((1, 2))}"
        else:
            options += f" --market {draw.choice(('calm', 'busy', 'storm'))} --hours 4"
            options += f" --nodes {draw.randrange(6, 14)} --zones {draw.choice(('a', 'a,b,c'))}"
            options += f" --first-seed {case} --seeds {draw.choice((1, 2))}"
        options += f" --notice-seconds {draw.choice((0, 30))}" + " --rivals" * (case % 4 == 0)
        told = ("simulate", f"{examples}/{job}.toml", *options.split(), "--json")
        figures = json.dumps(_renamed(_answer(words, *told), words), indent=1)
        lines = f"{options}\n{figures}".replace(examples, "EXAMPLES").splitlines()
        yield str(case), {"figures": digest(lines), "lines": len(lines)}, lines


def _answer(words: Words, *arguments: str) -> Any:
    """What a command prints as JSON. Raises RuntimeError where it fails, which shows nothing."""
    status, out = command(words, *arguments)
    if status:
        raise RuntimeError(f"{' '.join(arguments)} ended with {status}: {out}")
    return json.loads(out)


def _renamed(value: Any, words: Words) -> Any:
    """A JSON value in the newer side's words."""
    if isinstance(value, dict):
        return {words.name(key): _renamed(one, words) for key, one in value.items()}
    if isinstance(value, list):
        return [_renamed(one, words) for one in value]
    return words.sentence(value) if isinstance(value, str) else value


def receipts(asked: Asked, words: Words, given: Given) -> Cases:
    """A recorded run under seeded prices, markets and ends: its bill, its receipt, and where each
    micro-dollar went."""
    money = words.module("bamboo.billing.money")
    bill_log = words.module("cli.bill_log") if words.old else money
    for case in asked["cases"]:
        draw = random.Random(f"receipt {case}")
        with tempfile.TemporaryDirectory() as home:
            os.environ["BAMBOO_HOME"] = home
            run, free = Path(home, "spent"), bool(case % 2)
            shutil.copytree(KEPT_RUNS[words.old], run)
            cloud, receipt, resolved = (
                run / name for name in ("cloud.jsonl", "receipt.json", "resolved.json")
            )
            records = [json.loads(line) for line in cloud.read_text().splitlines()]
            for record in records:
                if record["kind"] == "start":
                    record["usd_per_hour"] = round(draw.uniform(0.05, 3.0), 4)
                    record["market"] = draw.choice(("spot", "spot", "spot", "on-demand"))
                    record["t"] -= draw.choice((0.0, draw.uniform(0, 40), draw.uniform(0, 9000)))
                elif record["kind"] == "end":
                    record["t"] += draw.choice((0.0, draw.uniform(0, 5), draw.uniform(0, 4000)))
            cloud.write_text("".join(json.dumps(record) + "\n" for record in records))
            prices = {"g4dn.xlarge": 0.526}
            rented = bill_log.rented_in(cloud, on_demand_usd_per_hour=prices, free_first_hour=free)
            body = json.loads(receipt.read_text())
            bill = money.bill(rented, now_s=body["ended_s"], modelled=True).to_body()
            receipt.write_text(json.dumps(body | {"bill": bill}))
            job = json.loads(resolved.read_text())
            job["job"]["budget"]["free_first_hour"] = free
            resolved.write_text(json.dumps(job))
            cost = _renamed(_answer(words, "cost", "spent", "--json"), words)
        lines = json.dumps([bill, cost], indent=1).replace(home, "HOME").splitlines()
        uses = sum(one["micro_usd"] for one in cost["spent"]["uses"])
        yield str(case), {"usd": bill["usd"], "uses": uses, "receipt": digest(lines)}, lines


PARTS: dict[str, Callable[[Asked, Words, Given], Cases]] = {
    one.__name__: one for one in (transcripts, swarm, simulations, receipts, matrix, golden)
}


def main() -> None:
    """Read what is asked, and write the answers to the file that it names: side, part, cases, the
    map and the intended differences, and `show`, the cases to be written as text too."""
    asked = json.loads(Path(sys.argv[1]).read_text())
    sys.path[:1] = [os.getcwd()]
    found = importlib.import_module("bamboo").__file__
    if found is None or Path(os.getcwd()) not in Path(found).parents:
        raise SystemExit(f"{found} is not the program of {os.getcwd()}")
    words = Words(asked)
    answers: dict[str, Answer] = {}
    given: Given = asked["given"]
    for case, answer, lines in PARTS[asked["part"]](asked, words, given):
        answers[case] = answer
        if asked["show"]:
            file = Path(asked["show"], f"{asked['part']}-{case}-{asked['side']}.txt")
            file.write_text("\n".join(lines) + "\n")
        words.forget()
    met, taken = sorted(words.met), sorted(words.taken)
    body = {"answers": answers, "given": given, "met": met, "taken": taken}
    Path(asked["out"]).write_text(json.dumps(body))


if __name__ == "__main__":
    main()
