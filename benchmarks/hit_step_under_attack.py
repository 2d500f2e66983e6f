"""How long a hit step is while strangers hold the ports of all workers, and without strangers.

    python -m benchmarks.hit_step_under_attack [--rounds 2] [--kills 3] [--connections 20000]

The job of `benchmarks.hit_step` (mode stash), over TCP, encrypted and not. The arms take turns. In
each, the stages of a list are lost by SIGKILL, one after the other, each once everything is
protected again. At the end an instance gets a notice and is taken at its deadline. Under attack,
`tests.security.worker_ports` has opened so many connections in all before that, of which twenty at
each port greet slowly. The bits must be those of the calm run.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from bamboo.core.events import NoticeReceived
from bamboo.ids import NodeId
from bamboo.topology.slots import Slot
from benchmarks.failover import failover_ours as ours
from benchmarks.hit_step import FORWARD_S, Loss, losses, whole
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import command_of, in_turn, ratio_of_means, write_result
from testbed.calm import difference
from testbed.cluster import Cluster, cluster
from testbed.forker import close_shared_forker

ARMS = ("quiet", "attacked")
LIMIT = 2.0
"""The hit step under attack divided by the quiet one, at most."""
NOTICE_S = 5.0
PROTECTED_S = 60.0
PROCESSES = 2
"""Processes of strangers: one may not have descriptors for all connections."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One run of one arm."""

    hit_s: tuple[float, ...]
    """For each step that a SIGKILL hit."""
    notice_s: float
    """The longest step between the notice and the instance's end."""
    calm_s: float
    difference: str


def play(arm: str, *, encrypt: bool, todo: Sequence[Loss], connections: int) -> Found:
    """Lose the stages one after the other, then take an instance with a notice."""
    job = ours.job("stash", FORWARD_S)
    job = replace(job, cluster=replace(job.cluster, transport="tcp", encrypt=encrypt))
    with cluster(job) as run:
        run.start(ours.STAGES + ours.STANDBYS)
        run.wait_step(ours.WARM_STEPS)
        with strangers(run, connections if arm == "attacked" else 0):
            stamps = []
            for loss in todo:
                settle(run)
                victim = run.owner(Slot(pipeline=0, stage=loss.stage))
                stamps.append(time.time())
                run.kill(victim)
                run.wait_lost(victim)
                run.start_one()
            settle(run)
            noticed_s, gone_s = notice(run)
            settle(run)
            ours.stop(run)
        commits = [commit.at_s for commit in ours.commits_of(run)]
        unlike = difference(run, len(run.losses()))
    steps = list(pairwise(commits))
    hit = [next(end - begin for begin, end in steps if end > at_s) for at_s in stamps]
    during = [end - begin for begin, end in steps if end > noticed_s and begin < gone_s]
    calm = statistics.median(end - begin for begin, end in steps)
    return Found(hit_s=tuple(hit), notice_s=max(during), calm_s=calm, difference=unlike)


def settle(run: Cluster) -> None:
    """Wait until every slot is protected, and a step more."""
    run.wait(whole, PROTECTED_S, "protection")
    run.wait_step(max(run.losses()) + 2)


def notice(run: Cluster) -> tuple[float, float]:
    """Give the first stage's instance a notice, and take it at its deadline; both times."""
    node = run.owner(Slot(pipeline=0, stage=0))
    noticed_s = time.time()
    run.append(NoticeReceived(node=NodeId(node), deadline_s=noticed_s + NOTICE_S))
    run.start_one()
    ours.sleep_until(time.monotonic() + NOTICE_S)
    run.kill(node)
    gone_s = time.time()
    run.wait_step(max(run.losses()) + 2)
    return noticed_s, gone_s


@contextmanager
def strangers(run: Cluster, connections: int) -> Iterator[None]:
    """So many connections in all to the ports of the present nodes, made before the block
    begins."""
    ports = [node.endpoint.removeprefix("tcp://") for node in run.state().nodes]
    each = connections // (len(ports) * PROCESSES)
    command = [sys.executable, "-m", "tests.security.worker_ports", "--hold"]
    made = [
        subprocess.Popen(
            [*command, "--connections", str(each), *ports],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for _ in range(PROCESSES if connections else 0)
    ]
    try:
        for process in made:
            assert process.stdout is not None
            if not process.stdout.readline():
                raise RuntimeError("the strangers could not connect")
        yield
    finally:
        for process in made:
            process.kill()
            process.communicate()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=at_least(1), default=2)
    parser.add_argument("--kills", type=at_least(1), default=3, help="of each run")
    parser.add_argument("--connections", type=at_least(1), default=20_000)
    arguments = parsed(parser)
    body: dict[str, object] = {"claims": []}
    try:
        for encrypt in (True, False):
            mode = "encrypted" if encrypt else "clear"
            hit: dict[str, list[float]] = {arm: [] for arm in ARMS}
            for number in range(arguments.rounds):
                todo = losses(arguments.kills, seed=number)
                for arm in in_turn(ARMS, number):
                    found = play(arm, encrypt=encrypt, todo=todo, connections=arguments.connections)
                    if found.difference:
                        raise RuntimeError(f"{arm}: not the calm run's bits: {found.difference}")
                    hit[arm] += found.hit_s
                    print(
                        f"{mode}, {arm}: calm {_ms([found.calm_s])}, "
                        f"hit {_ms(found.hit_s)}, longest with a notice {_ms([found.notice_s])} ms",
                        flush=True,
                    )
            ratio, low, high = ratio_of_means(hit["attacked"], hit["quiet"])
            about = (
                f"hit step under attack over the quiet one, {'encrypted' if encrypt else 'clear'}"
            )
            claim = Claim(about=about, found=ratio, limit=LIMIT, interval=(low, high))
            print(f"{claim.line()}; bits equal in every run")
            body["claims"] = [*body["claims"], asdict(claim)]  # type: ignore[misc]
            body[mode] = hit
    finally:
        close_shared_forker()
    command = command_of("hit_step_under_attack", arguments)
    print(f"written: {write_result('hit-step-under-attack', command, body).name}")


def _ms(seconds: Sequence[float]) -> str:
    return ", ".join(f"{1e3 * one:.0f}" for one in seconds)


if __name__ == "__main__":
    main()
