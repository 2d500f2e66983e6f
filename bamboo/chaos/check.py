"""Checkers of a run after a swarm of faults.

Rule: pure, and independent of the core. They read only records in the run's folder after its end
(as parsed JSON) and share no code with what wrote them. Each gives one Verdict, whose finding is
the first thing that is wrong, or "".
"""

import bisect
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

Record: TypeAlias = Mapping[str, Any]

IN_ORDER = ("stopped", "done")


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The result of a checker."""

    name: str
    finding: str
    """Empty: nothing is wrong."""
    seen: str = ""
    """What was checked, for a person."""

    @property
    def ok(self) -> bool:
        return not self.finding

    def to_json(self) -> dict[str, object]:
        return {"name": self.name, "ok": self.ok, "finding": self.finding, "seen": self.seen}


@dataclass(frozen=True, slots=True, kw_only=True)
class Struck:
    """A fault that was carried out. Unix times."""

    number: int
    kind: str
    at_s: float
    over_s: float
    """When its cause was gone."""


def struck(records: Iterable[Record]) -> tuple[Struck, ...]:
    """The faults of `chaos.jsonl` that hit something, in order. A missing `over` means that the
    cause never ended."""
    overs = {int(r["number"]): float(r["t"]) for r in records if r["kind"] == "over"}
    return tuple(
        Struck(
            number=int(r["number"]),
            kind=str(r["fault"]),
            at_s=float(r["t"]),
            over_s=overs.get(int(r["number"]), float("inf")),
        )
        for r in records
        if r["kind"] == "fault" and not r["missed"]
    )


def committed(records: Iterable[Record]) -> tuple[tuple[float, int], ...]:
    """(Unix time, finished steps) from `chaos.jsonl`, whenever the books had grown."""
    return tuple((float(r["t"]), int(r["steps"])) for r in records if r["kind"] == "steps")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stand:
    """The state of the run from `at_s` on, in Unix time."""

    at_s: float
    phase: str
    under_way: int
    """Failovers, transfers, moves and reconfigurations."""

    def __str__(self) -> str:
        return f"{self.phase}, {self.under_way} changes under way"


def stands(records: Iterable[Record]) -> tuple[Stand, ...]:
    """The states of the run from `chaos.jsonl`, one for each change."""
    return tuple(
        Stand(at_s=float(r["t"]), phase=str(r["phase"]), under_way=int(r["under_way"]))
        for r in records
        if r["kind"] == "stands"
    )


# ---------------------------------------------------------------- numbers


def check_losses(metrics: Sequence[Record], *, steps: int, undone: int = 0) -> Verdict:
    """Each of `steps` steps has one loss, of one bit pattern, and no other step has any, except
    those below `undone`, which a restore took back."""
    bits: dict[int, str] = {}
    finding = ""
    for record in metrics:
        step, loss = int(record["step"]), float(record["loss"]).hex()
        if loss != record["loss_hex"]:
            finding = finding or f"step {step}: loss {loss} is recorded as {record['loss_hex']}"
        if bits.setdefault(step, loss) != loss:
            finding = finding or f"step {step} has two losses: {bits[step]} and {loss}"
    missing = next((step for step in range(steps) if step not in bits), None)
    beyond = min((step for step in bits if not 0 <= step < max(steps, undone)), default=None)
    if not finding and missing is not None:
        finding = f"step {missing} of {steps} has no loss"
    if not finding and beyond is not None:
        finding = f"step {beyond} has a loss, and the run ended after {steps} steps"
    return Verdict(name="losses", finding=finding, seen=f"{len(bits)} steps, one loss each")


# ---------------------------------------------------------------- the end


def check_end(receipt: Record | None, launchers: Sequence[int]) -> Verdict:
    """The run ended because a stop was requested or because it was done, and none of its launchers
    ended before that (`launchers`: those that did although they were not killed)."""
    if launchers:
        finding = f"launcher {launchers[0]} ended by itself while the run went on"
        return Verdict(name="end", finding=finding)
    if receipt is None:
        return Verdict(name="end", finding="the run left no receipt")
    outcome, sentence = receipt["outcome"], receipt["sentence"]
    finding = "" if outcome in IN_ORDER else f"it ended {outcome} by itself: {sentence}"
    if not finding and receipt["final_note"]:
        finding = str(receipt["final_note"])
    return Verdict(name="end", finding=finding, seen=f"{outcome} after step {receipt['step']}")


def undone_below(receipt: Record) -> int:
    """The step below which everything that a restore took back lies; 0: nothing was taken back."""
    again = (int(r["step"]) + int(r["steps_again"]) for r in receipt["reconfigurations"])
    return max(again, default=0)


def check_orphans(
    cloud: Sequence[Record], *, processes: Sequence[int], paths: Sequence[str]
) -> Verdict:
    """Every instance of the cloud's journal has ended exactly once, and nothing of the run is left
    on this machine: `processes` and `paths` are what was found."""
    began = [str(r["instance"]) for r in cloud if r["kind"] == "start"]
    ended = [str(r["instance"]) for r in cloud if r["kind"] == "end"]
    running = [instance for instance in began if instance not in ended]
    twice = sorted({i for i in ended if ended.count(i) > 1} | (set(ended) - set(began)))
    finding = ""
    if running:
        finding = f"{running[0]} still runs, {len(running)} in all"
    elif twice:
        finding = f"{twice[0]} ended twice, or never began"
    elif processes:
        finding = f"processes {', '.join(map(str, processes))} of the run still live"
    elif paths:
        finding = f"{paths[0]} is left"
    return Verdict(name="orphans", finding=finding, seen=f"{len(began)} instances, all ended")


# ---------------------------------------------------------------- faults


def check_faults(records: Sequence[Record], *, drawn_s: Sequence[float]) -> Verdict:
    """Of the faults that were due before the time of faults was over (`drawn_s`: when, in seconds
    from its begin), half struck, and at least one: a run without faults proves nothing."""
    name, done = "faults", [r for r in records if r["kind"] == "fault"]
    begin_s = next((float(r["t"]) for r in records if r["kind"] == "begin"), None)
    end_s = next((float(r["t"]) for r in records if r["kind"] == "healing"), float("inf"))
    due = 0 if begin_s is None else sum(begin_s + at_s < end_s for at_s in drawn_s)
    hit, missed = len(struck(records)), [r for r in done if r["missed"]]
    seen = f"{hit} struck of {due} that were due, {len(missed)} missed"
    if hit > 0 and 2 * hit >= due:
        return Verdict(name=name, finding="", seen=seen)
    first = f"; fault {missed[0]['number']}: {missed[0]['missed']}" if missed else ""
    return Verdict(name=name, finding=f"{seen}; half of them are to strike, and one{first}")


# ---------------------------------------------------------------- progress


def check_progress(
    faults: Sequence[Struck], steps: Sequence[tuple[float, int]], *, bound_s: float
) -> Verdict:
    """After each fault a later step was finished within `bound_s`. The time counts from the end of
    the fault's cause, or of the cause of the last fault before that step."""
    finding = ""
    times = [t for t, _ in steps]
    for fault in faults:
        if fault.over_s == float("inf"):
            finding = finding or f"{_name(fault)}: its cause was never taken away"
            continue
        after = next_step_s(times, fault.over_s)
        until_s = float("inf") if after is None else after
        causes = [f.over_s for f in faults if f.at_s <= until_s and f.over_s < float("inf")]
        waited_s = until_s - max(c for c in causes if c <= until_s)
        if waited_s > bound_s and not finding:
            words = f"no step for {waited_s:.1f} s, the bound is {bound_s:g} s"
            finding = f"{_name(fault)}: " + ("no step after it" if after is None else words)
    longest = max((b - a for a, b in pairwise(times)), default=0.0)
    return Verdict(
        name="progress",
        finding=finding,
        seen=f"a later step after each of {len(faults)} faults, longest stall {longest:.1f} s",
    )


def _name(fault: Struck) -> str:
    return f"fault {fault.number} ({fault.kind})"


def check_protection(
    faults: Sequence[Struck], stood: Sequence[Stand], *, seen_s: float, bound_s: float
) -> Verdict:
    """Within `bound_s` after the cause of the last fault was gone, the run had all its copies
    again. Its state counts from `seen_s` on, because a loss may not have been seen before."""
    name, causes = "protection", [f.over_s for f in faults if f.over_s < float("inf")]
    if not causes:
        return Verdict(name=name, finding="", seen="no fault")
    last_s, last = max(causes), stood[-1] if stood else None
    ends = [*(stand.at_s for stand in stood[1:]), float("inf")]
    for stand, end_s in zip(stood, ends, strict=False):
        since_s = max(stand.at_s, last_s + seen_s)
        if stand.phase != "running" or stand.under_way or end_s <= since_s:
            continue
        took_s = max(stand.at_s - last_s, 0.0)
        late = f"all copies were there again after {took_s:.1f} s, the bound is {bound_s:g} s"
        seen = f"all copies were there {took_s:.1f} s after the last fault"
        return Verdict(name=name, finding=late if took_s > bound_s else "", seen=seen)
    words = "nobody saw how it stood" if last is None else f"it still stood at: {last}"
    return Verdict(name=name, finding=f"not all copies came back after the last fault; {words}")


def next_step_s(times: Sequence[float], after_s: float) -> float | None:
    """When the first step after `after_s` was finished."""
    index = bisect.bisect_right(times, after_s)
    return times[index] if index < len(times) else None


# ---------------------------------------------------------------- decisions


def check_fences(decisions: Sequence[Record]) -> Verdict:
    """No report of a node counted after the log had called it gone, or after it had left."""
    gone: dict[str, int] = {}
    finding, last = "", None
    for entry in decisions:
        version = int(entry["version"])  # a store that was refilled begins with a later one
        if last is not None and version != last + 1 and not finding:
            finding = f"version {last + 1} is not in the log"
        last = version
        event = entry.get("event")
        if event is None:
            continue
        speaker = event.get("reporter") if event["kind"] == "PeerLost" else event.get("node")
        if speaker in gone and not finding:
            finding = (
                f"version {version}: {event['kind']} of {speaker}, "
                f"which is gone since version {gone[speaker]}"
            )
        alone = event["kind"] == "NodeFailed" and event["scope"] != "run"
        if alone or event["kind"] in ("PeerLost", "NodeLeft"):
            gone.setdefault(str(event["node"]), version)
    seen = f"{len(decisions)} versions, nothing counted of {len(gone)} nodes after they were gone"
    return Verdict(name="fences", finding=finding, seen=seen)


# ---------------------------------------------------------------- checkpoints

HANDS = frozenset(
    (
        *("PeerLost", "NodeFailed", "NodeLeft", "HandedOver", "Yielded"),
        *("Quiesced", "LayoutBuilt", "StoreRefilled"),
    )
)
"""These events may change which node stores a part, or lose the report of it."""
BEGUN = 4
"""How many checkpoints may be under way. When a store answers again, several are reported at once,
and the oldest are given up."""


def check_checkpoints(decisions: Sequence[Record], names: Collection[str]) -> Verdict:
    """Each checkpoint that was begun and overtaken by a later one is complete or was reported as
    failed. A checkpoint during which slots changed their nodes or the layout changed, or during
    which BEGUN later ones began, is only counted. `names` are the files below the folder of
    checkpoints. None of them may be part of an unfinished file of an incomplete step that two
    complete checkpoints followed."""
    events = [entry["event"] for entry in decisions if entry.get("event") is not None]
    begun: dict[int, int] = {}
    """Step -> index in `events` of the checkpoint that was complete before its begin."""
    done: list[int] = []
    failed: set[int] = set()
    torn: dict[int, bool] = {}
    """Steps that were overtaken, and whether that is allowed."""
    before = 0
    for at, event in enumerate(events):
        if event["kind"] == "ShardSaved":
            begun.setdefault(int(event["step"]), before)
        elif event["kind"] == "CheckpointFailed":
            failed.add(int(event["step"]))
        elif event["kind"] == "CheckpointDone":
            for step in sorted(step for step in begun if step < int(event["step"])):
                kinds = {str(e["kind"]) for e in events[begun.pop(step) : at]}
                many = sum(later > step for later in begun) >= BEGUN
                torn.setdefault(step, many or bool(kinds & HANDS))
            done.append(int(event["step"]))
            before = at
    left = {step: may for step, may in torn.items() if step not in failed.union(done)}
    silent = sorted(step for step, may in left.items() if not may)
    whole = {name.split("/")[0] for name in names if name.endswith("/manifest.json")}
    strays = [name for name in names if _is_left_behind(name, whole, done)]
    finding = ""
    if silent:
        finding = f"the checkpoint of step {silent[0]} was begun, and nobody said what became of it"
    elif strays:
        finding = f"{strays[0]} is left, {len(strays)} in all"
    seen = f"{len(set(done))} complete, {len(failed.difference(done))} failed"
    seen += f", {len(left) - len(silent)} let go with a slot or for later ones"
    return Verdict(name="checkpoints", finding=finding, seen=seen)


def _is_left_behind(name: str, whole: Collection[str], done: Iterable[int]) -> bool:
    """Whether this is part of a file that no node can complete. Its folder is deleted when the next
    checkpoint is complete, so the end of the run may leave one more. What is constant is written
    until the first checkpoint is complete."""
    folder, _, rest = name.partition("/")
    if folder in whole or not rest.rpartition("/")[2].startswith(".aside-"):
        return False
    steps = set(done)
    first = min(steps, default=0)
    since = first if folder == "constant" else int(folder.removeprefix("step-"))
    return sum(step > since for step in steps) > 1
