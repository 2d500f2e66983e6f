"""What a run's log says happened, for tests to hold against what they did."""

from bamboo.coord.driver import read_begin
from bamboo.core.machine import transition
from bamboo.core.state import State
from testbed.cluster import Cluster


def states(run: Cluster) -> list[State]:
    """Every state of the run, in order."""
    begin = read_begin(run.store)
    out = [begin.state]
    for d in run.decisions():
        if d.event is not None:
            out.append(transition(out[-1], d.event, now_s=d.now_s, policy=begin.policy).state)
    return out


def restores(run: Cluster) -> list[str]:
    return [d.reason for d in run.decisions() if "restored from" in d.reason]


def bases(run: Cluster) -> list[int]:
    """The step of each checkpoint that was gone back to."""
    found = [state.reconfiguration for state in states(run) if state.reconfiguration is not None]
    return sorted({r.base for r in found if r.checkpoint and r.base is not None})
