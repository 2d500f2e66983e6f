"""torchrun in the plays of kills: one agent per node, one more that waits, and checkpoints.

Rule: a kill takes a whole node, the agent and its worker; another agent is started at once. The
store of the rendezvous is a process that is never killed, like an etcd apart from the nodes.
"""

import contextlib
import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.failover.failover_figures import Commit, Kill, Play
from benchmarks.peers.processes import BIN, end, free_port, running, surroundings, wait_for
from benchmarks.peers.torchft_group import Theirs, Work

EVERY_STEPS = 5
"""Steps between two checkpoints. They are small, so more of them would cost next to nothing."""
STORE = (
    "import sys, time, torch.distributed as d\n"
    "s = d.TCPStore('localhost', int(sys.argv[1]), is_master=True, wait_for_workers=False)\n"
    "time.sleep(1e6)\n"
)
RENDEZVOUS = (
    "is_host=0,last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=3,timeout=120"
)
COLLECTIVE_S = 5.0


class Agents:
    """Agents in the order in which they were started, any of which may be killed."""

    def __init__(self, directory: Path, work: Work, port: int) -> None:
        self._directory, self._work, self._port = directory, work, port
        self._agents: list[subprocess.Popen[bytes]] = []
        self._started = 0
        (directory / "records").mkdir()
        config = {
            "job": work.job,
            "each": work.each,
            "step_s": work.step_s,
            "slow_steps": work.slow_steps,
            "steps": work.steps,
            "every": EVERY_STEPS,
            "collective_s": COLLECTIVE_S,
            "checkpoint": str(directory / "checkpoint"),
            "records": str(directory / "records"),
        }
        (directory / "config.json").write_text(json.dumps(config))

    def start(self) -> None:
        """Start one more agent: it trains, or waits until one is missing."""
        nodes = self._work.active
        command = ["setpriv", "--pdeathsig", "KILL", str(BIN / "torchrun")]
        command += [f"--nnodes={nodes}:{nodes}", "--nproc-per-node=1"]
        command += ["--rdzv-backend=c10d", f"--rdzv-endpoint=localhost:{self._port}"]
        command += ["--rdzv-id=play", f"--rdzv-conf={RENDEZVOUS}", "--local-addr=localhost"]
        command += ["--max-restarts=100000", "--monitor-interval=0.1"]
        command += ["-m", "benchmarks.peers.torchrun_worker", str(self._directory / "config.json")]
        with (self._directory / f"a{self._started:03d}.log").open("ab") as out:
            self._started += 1
            agent = subprocess.Popen(
                command,
                env=surroundings(TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1"),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                process_group=0,
            )
        self._agents.append(agent)

    def kill(self, kill: Kill) -> float:
        """SIGKILL an agent that trains, and its worker; the time by the monotonic clock."""
        training = [a for a in self._agents if _children(a.pid)] or self._agents
        victims = [str(a.pid) for a in training[: self._work.active]]
        victim = next(a for a in training if str(a.pid) == kill.victim(victims))
        at_s = time.monotonic()
        self._agents.remove(victim)
        _end_node(victim)
        return at_s

    def records(self) -> list[Commit]:
        """What the workers of rank 0 committed, in order of time."""
        return [commit for commit, _ in self.said()]

    def said(self) -> list[tuple[Commit, str]]:
        """Commits and the digests of the weights after them, in order of time."""
        out = []
        for file in (self._directory / "records").glob("*.jsonl"):
            for line in file.read_text().splitlines():
                with contextlib.suppress(ValueError):  # the last line of a killed worker
                    one = json.loads(line)
                    samples = self._work.active * self._work.each * self._work.microbatch
                    commit = Commit(step=one["step"], at_s=one["at_s"], samples=samples)
                    out.append((commit, one["digest"]))
        return sorted(out, key=lambda one: one[0].at_s)

    def wait_step(self, step: int, timeout_s: float = 180.0) -> None:
        """Wait until that step was committed."""
        wait_for(
            lambda: any(c.step >= step for c in self.records()),
            lambda: f"torchrun did not come to step {step}: {self.logs()}",
            timeout_s,
        )

    def logs(self) -> str:
        """The end of each agent's log."""
        logs = sorted(self._directory.glob("a*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-800:]}" for log in logs)

    def close(self) -> None:
        """End all agents and workers."""
        for agent in self._agents:
            _end_node(agent)


def _children(pid: int) -> list[int]:
    try:
        return [int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def _end_node(agent: "subprocess.Popen[bytes]") -> None:
    """Kill the worker first: an agent that sees it end would start another one."""
    os.kill(agent.pid, signal.SIGSTOP)
    for pid in _children(agent.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    end(agent)


@contextlib.contextmanager
def agents(work: Work) -> Iterator[Agents]:
    """A store, with no agent yet."""
    with tempfile.TemporaryDirectory(prefix="br-", ignore_cleanup_errors=True) as name:
        directory, port = Path(name), free_port()
        command = [str(BIN / "python"), "-c", STORE, str(port)]
        with running(command, directory / "store.log"):
            made = Agents(directory, work, port)
            try:
                yield made
            finally:
                made.close()


def played(work: Work, kills: Sequence[Kill], for_s: float, *, spares: int, warm: int) -> Theirs:
    """Play the kills for so many seconds after `warm` steps; without kills and with `work.steps`
    it is the calm run."""
    with agents(work) as nodes:
        for _ in range(work.active + spares):
            nodes.start()
        nodes.wait_step(warm)
        begin_s = time.monotonic()
        stamps = []
        for kill in kills:
            time.sleep(max(0.0, begin_s + kill.at_s - time.monotonic()))
            stamps.append(nodes.kill(kill))
            nodes.start()
        if kills:
            time.sleep(max(0.0, begin_s + for_s - time.monotonic()))
        else:
            nodes.wait_step(work.steps - 1, timeout_s=for_s)
        end_s, said = time.monotonic(), nodes.said()
    digests: dict[int, set[str]] = {}
    for commit, digest in said:
        digests.setdefault(commit.step, set()).add(digest)
    return Theirs(
        play=Play(
            begin_s=begin_s,
            end_s=end_s,
            kills_s=tuple(stamps),
            commits=tuple(commit for commit, _ in said),
            discarded=None,
        ),
        digests={commit.step: digest for commit, digest in said},
        unlike=sum(len(found) > 1 for found in digests.values()),
    )
