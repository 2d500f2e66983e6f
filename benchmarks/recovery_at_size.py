"""What a lost node and a reconfiguration take, by bytes of state per stage and by nodes.

    python -m benchmarks.recovery_at_size [--parts copy,sizes,nodes] [--mb 1,8,64,512] [--rounds 1]

Real processes, two stages, one wide block in each: a stage's state is 12 bytes a parameter. The
virtual device gives operations their times, longer ones from 32 MB on, so that about the same share
of an operation is left to its host whatever the size; overruns are printed. For each size:

- `replace`: a standby waits; the owner of stage 1 is killed. Measured are the parts of
  the pause (the end of the victim's connection comes late where it had much memory). Then the
  standby is sent both of its slots while the two others train, and takes one at a step boundary.
- `grow`: 1 x 2 -> 2 x 2. Two new nodes are sent a stage each while the others train, and follow
  them; then all stop at a step's end, and go on.

The pace is that of everything that a new layout prefetches: the state, and the gradient of each
step that ended meanwhile. Frames go over TCP on loopback, without encryption, as the copies do.

`benchmarks.measuring.commit_gaps` defines a stall. `copy` measures what the bytes are compared
with, `benchmarks.copy_bandwidth`: once by itself, and before and after each play that is judged by
it, some 15 s apart from the play, because a shared machine copies twice as fast at one time as at
another. `nodes` does both with little state on 4 to 32 processes. Every run's losses and final bits
are compared with the calm run's.
"""

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from safetensors import safe_open

from bamboo.config.tree import (
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    ModelConfig,
    TrainConfig,
)
from bamboo.coord.follow import Decision
from bamboo.core.events import LayoutBuilt, Prepared, ReplicaJoined
from bamboo.core.state import Phase, State
from bamboo.data.dataset import load_data
from bamboo.models import build_model
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.step.numerics import prepare
from bamboo.topology.grid import Grid
from bamboo.topology.slots import Slot
from benchmarks.copy_bandwidth import shown, yardstick
from benchmarks.failover.failover_ours import commits_of, stop
from benchmarks.failover.recovery_tables import (
    GROWN,
    JUDGED_MB,
    MB,
    REPLACED,
    SENT_AT_ONCE,
    claims,
    grown_row,
    replaced_row,
)
from benchmarks.measuring.commit_gaps import layout_gaps, longest_gap_s, median_gap_s
from benchmarks.measuring.options import at_least, chosen, parsed
from benchmarks.measuring.report import command_of, write_result
from testbed.calm import samples_difference
from testbed.cluster import Cluster, cluster

STATE_BYTES = 12
"""State of a parameter: itself and two moments."""
FULL_FIGURES_MB = 32
"""State of a stage. With more the arithmetic takes longer, and so do the device's operations. They
stand for those of a GPU, which leaves its host free, so an operation has several times its
arithmetic's time."""
COPIED_BYTES = 512 << 20
"""Bytes of each copy that a pace is compared with."""
AFTER = 4
"""Steps of a new layout to wait for."""
WARM = 3
"""Steps before anything is done to the run."""
PATIENCE_S = 300.0
LOOK_S = 0.25
"""Between two looks at a run that gets another pipeline. A hundred looks a second took 5 % of a
core, and the log has the time of each event anyway."""
HORIZON_STEPS = 2000
"""More than any run takes: it is stopped when the event of interest has happened."""
PARTS = ("copy", "sizes", "nodes")


def width_for(state_bytes: int) -> int:
    """The width of a GPT whose block has about so many bytes of state: 12 C^2 + 13 C parameters
    of 12 bytes each; a multiple of 8."""
    parameters = state_bytes / STATE_BYTES
    width = (-13 + (169 + 48 * parameters) ** 0.5) / 24
    return max(8, round(width / 8) * 8)


def sized_job(state_mb: int, *, redundancy: str) -> JobConfig:
    """Two stages of one block each; four microbatches of four tokens, for little arithmetic."""
    slow = max(1.0, state_mb / FULL_FIGURES_MB)
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        model=ModelConfig(layers=2, width=width_for(state_mb * MB), heads=1, context=4),
        data=DataConfig(max_bytes=200_000),
        train=TrainConfig(steps=HORIZON_STEPS, batch=4, microbatch=1, virtual_nodes=2),
        cluster=ClusterConfig(
            stages=SENT_AT_ONCE,
            max_pipelines=2 if redundancy == "peer" else 0,
            redundancy=redundancy,
            transport="tcp",
            encrypt=False,
            device="virtual",
            virtual_forward_ms=(20.0 * slow,),
            virtual_backward_ms=(40.0 * slow,),
            step_timeout_s=120.0,
        ),
    )


# ---------------------------------------------------------------- what a run says of itself


def bits_differ(run: Cluster) -> str:
    """What differs from the calm run, "" where nothing does; one tensor at a time in memory."""
    job, found = run.job, run.losses()
    prepare(job.cluster)
    calm = CalmRun(job, build_model(job), load_data(job))
    for step in range(len(found)):
        loss = calm.step().hex()
        if found.get(step) != loss:
            return f"loss of step {step}: {found.get(step)} is not {loss}"
    expected = calm.tensors()
    seen: set[str] = set()
    for file in sorted((run.directory / "final").glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118 (it is no mapping)
                seen.add(name)
                if not torch.equal(tensors.get_tensor(name), expected[name]):
                    return f"tensor {name}"
    if seen != expected.keys():
        return f"tensors {sorted(seen ^ expected.keys())[:3]}"
    return samples_difference(job, run.metrics("step"), len(found))


def ended(run: Cluster) -> dict[str, Any]:
    """For a run that has stopped at a step boundary: whether its bits are right, and how many
    operations overran."""
    overruns = sum(int(record["overruns"]) for record in run.metrics("memory"))
    return {"differs": bits_differ(run), "overruns": overruns}


def first(decisions: Sequence[Decision], of: Any) -> Decision:
    """The first decision whose state satisfies `of`."""
    return next(d for d in decisions if of(d.state))


# ---------------------------------------------------------------- the two things that are done


def replaced(job: JobConfig, standbys: int = 1) -> dict[str, Any]:
    """Kill the owner of the last stage while a standby waits; wait until everything is as
    before."""
    grid = Grid(pipelines=job.cluster.pipelines, stages=job.cluster.stages)
    with cluster(job) as run:
        run.start(grid.size + standbys)
        run.wait_step(WARM, PATIENCE_S)
        killed_ns = run.kill(run.owner(Slot(pipeline=0, stage=grid.stages - 1)))
        killed_s = time.time() - (time.monotonic_ns() - killed_ns) / 1e9
        run.wait(lambda s: s.failovers != () or s.phase is not Phase.RUNNING, 60, "a failover")
        run.wait(lambda s: settled(s) and not s.failovers, PATIENCE_S, "all protected")
        whole_s = time.time()
        stop(run)
        end = ended(run)
        decisions = run.decisions()
        failover = next(f for f in run.metrics("failover") if not f["planned"])
        commits = [commit.at_s for commit in commits_of(run)]
    joined = [d for d in decisions if isinstance(d.event, ReplicaJoined)]
    if not joined:
        raise RuntimeError(f"no standby ever had a replica: {decisions[-1].state.sentence}")
    begun_s = first(decisions, lambda s: s.transfers).now_s
    before = [t for t in commits if t <= killed_s]
    steady_s = median_gap_s(before)
    hit_s = next(t for t in commits if t > killed_s)
    after = [t for t in commits if hit_s <= t <= max(d.now_s for d in joined) + steady_s]
    sent = sum(d.event.bytes for d in joined if isinstance(d.event, ReplicaJoined))
    took_s = max(d.now_s for d in joined) - begun_s
    stamps = [killed_ns / 1e9, *(failover[n] for n in STAMPS)]
    return {
        "parts_ms": {
            name: 1e3 * (b - a)
            for name, (a, b) in zip(PAUSE, itertools.pairwise(stamps), strict=True)
        },
        "step_s": steady_s,
        "hit_step_s": hit_s - before[-1],
        "merged_step_s": median_gap_s(after) if len(after) > 2 else None,
        "longest_step_s": longest_gap_s(commits, hit_s, max(after)),
        "sent_bytes": sent,
        "protected_s": took_s,
        "whole_s": whole_s - killed_s,
        **end,
    }


PAUSE = ("disconnect", "decision", "promotion", "first operation")
STAMPS = ("seen_s", "decided_s", "promoted_s", "first_operation_s")


def settled(state: State) -> bool:
    """Whether nothing more has to be sent or moved."""
    finished = state.phase is Phase.FINISHED
    return finished or (state.phase is Phase.RUNNING and not (state.transfers or state.moves))


def copied() -> dict[str, list[float]]:
    """GB/s of each way of copying, once."""
    return yardstick(size_bytes=COPIED_BYTES, rounds=1)


def grown(job: JobConfig, *, beside_copies: bool = False) -> dict[str, Any]:
    """Add one pipeline, on as many new nodes. With `beside_copies` the copies are measured before
    the run begins and after it has stopped."""
    before = copied() if beside_copies else {}
    stages, pipelines = job.cluster.stages, job.cluster.pipelines
    wanted = Grid(pipelines=pipelines + 1, stages=stages)
    with cluster(job) as run:
        run.start(pipelines * stages)
        run.wait_step(WARM, PATIENCE_S, poll_s=LOOK_S)
        run.start(stages)
        run.wait(
            lambda s: s.grid == wanted and s.reconfiguration is None,
            PATIENCE_S,
            f"{wanted}",
            poll_s=LOOK_S,
        )
        run.wait_step(max(run.losses()) + 1 + AFTER, PATIENCE_S, poll_s=LOOK_S)
        stop(run)
        after = copied() if beside_copies else {}
        end = ended(run)
        decisions = run.decisions()
        commits = [commit.at_s for commit in commits_of(run)]
    begun = first(decisions, lambda s: s.reconfiguration is not None)
    based = first(
        decisions, lambda s: s.reconfiguration is not None and s.reconfiguration.base is not None
    )
    built = [d for d in decisions if isinstance(d.event, LayoutBuilt)]
    sent = sum(d.event.bytes for d in built if isinstance(d.event, LayoutBuilt))
    done_s = built[-1].now_s
    assert begun.state.reconfiguration is not None
    prepares_s = first(decisions, lambda s: s.preparing is not None).now_s
    said = [d.event for d in decisions if isinstance(d.event, Prepared)]
    ahead = begun.state.reconfiguration.ahead
    ahead_bytes = 0 if ahead is None else sum(size for _, size in ahead.prepared)
    followed_bytes = sum(event.followed_bytes for event in said)
    ahead_s = begun.now_s - prepares_s
    gaps = layout_gaps(commits, begun_s=begun.now_s, last_s=done_s)
    return {
        "step_s": gaps.step_s,
        "new_step_s": gaps.new_step_s,
        "finishing_more_s": gaps.finishing_more_s,
        "first_more_s": gaps.first_more_s,
        "stall_s": gaps.stall_s,
        "sent_bytes": sent,
        "sent_s": done_s - based.now_s,
        "ahead_bytes": ahead_bytes,
        "followed_bytes": followed_bytes,
        "ahead_s": ahead_s,
        "gb_per_s": (ahead_bytes + followed_bytes) / ahead_s / 1e9,
        **(
            {"copies": {way: rates + after[way] for way, rates in before.items()}} if before else {}
        ),
        **end,
    }


# ---------------------------------------------------------------- by nodes


def counted_job(nodes: int, *, grows: bool) -> JobConfig:
    """Little state on so many nodes: pipelines of four stages (of two for four nodes), with times
    that two cores can keep for all of them. With `grows` it begins with one pipeline less."""
    stages = 2 if nodes == 4 else 4
    pipelines = nodes // stages
    slow = max(1.0, nodes / 8)
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        model=ModelConfig(layers=stages, width=64, heads=2, context=8),
        data=DataConfig(max_bytes=200_000),
        train=TrainConfig(steps=HORIZON_STEPS, batch=32, microbatch=1, virtual_nodes=8),
        cluster=ClusterConfig(
            stages=stages,
            pipelines=pipelines - grows,
            max_pipelines=pipelines if grows else 0,
            redundancy="stash",
            device="virtual",
            virtual_forward_ms=(10.0 * slow,),
            virtual_backward_ms=(20.0 * slow,),
        ),
    )


def rows(
    names: Sequence[int],
    jobs: dict[str, Any],
    *,
    rounds: int,
    beside_copies: bool = False,
) -> dict[str, Any]:
    """Play both for each size, round by round, and print each as it is done."""
    body: dict[str, Any] = {}
    for _ in range(rounds):
        for name in names:
            for what, job_for in jobs.items():
                job, is_grown = job_for(name), what == "grow"
                judged = beside_copies and is_grown and name == JUDGED_MB
                found = grown(job, beside_copies=judged) if is_grown else replaced(job)
                print(GROWN if is_grown else REPLACED)
                row = grown_row(found) if is_grown else replaced_row(found)
                print(f"{what:>7} {name:4d} {row}", flush=True)
                body.setdefault(what, {}).setdefault(str(name), []).append(found)
    return body


def numbers(parser: argparse.ArgumentParser, option: str, words: str, step: int = 1) -> list[int]:
    """Whole numbers, multiples of `step`; the parser exits with an error about a wrong one."""
    out = []
    for word in words.split(","):
        if not word.isdecimal() or not int(word) or int(word) % step:
            parser.error(f"--{option} {word!r}: give whole numbers, {step} or a multiple of it")
        out.append(int(word))
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--mb", default="1,8,64,512", help="of state a stage")
    parser.add_argument("--nodes", default="4,8,16,32")
    parser.add_argument("--rounds", type=at_least(1), default=1)
    arguments = parsed(parser)
    parts = chosen(parser, "part", arguments.parts, PARTS)
    sizes = numbers(parser, "mb", arguments.mb)
    counts = numbers(parser, "nodes", arguments.nodes, step=4)
    body: dict[str, Any] = {}
    if "copy" in parts:
        found = yardstick(size_bytes=COPIED_BYTES, rounds=3)
        fastest = {name: asdict(one) for name, one in shown(found).items()}
        body["copy"] = {"gb_per_s": found, "fastest": fastest}
    if "sizes" in parts:
        print("by MB of state a stage")
        body["sizes"] = rows(
            sizes,
            {
                "replace": lambda mb: sized_job(mb, redundancy="stash"),
                "grow": lambda mb: sized_job(mb, redundancy="peer"),
            },
            rounds=arguments.rounds,
            beside_copies="copy" in parts,
        )
    if "nodes" in parts:
        print("by nodes, little state")
        body["nodes"] = rows(
            counts,
            {
                "replace": lambda nodes: counted_job(nodes, grows=False),
                "grow": lambda nodes: counted_job(nodes, grows=True),
            },
            rounds=arguments.rounds,
        )
    made = claims(body.get("sizes", {}))
    body["claims"] = [asdict(claim) for claim in made]
    print("\n".join(claim.line() for claim in made))
    command = command_of("recovery_at_size", arguments)
    part = "" if parts == list(PARTS) else arguments.parts
    print(write_result("recovery-at-size", command, body, part))
    plays = (
        play
        for name in ("sizes", "nodes")
        for by_size in body.get(name, {}).values()
        for found in by_size.values()
        for play in found
    )
    return int(any(play["differs"] for play in plays))


if __name__ == "__main__":
    sys.exit(main())
