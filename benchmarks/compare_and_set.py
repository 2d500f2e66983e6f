"""How long until all members know a decision: through a real store, with 4 and with 64 members.

    python -m benchmarks.compare_and_set [--members 4 64] [--rounds 40]

The embedded store as a child process over its Unix socket, and a run that trains in grids with a
shadow for each slot (`benchmarks.control_plane` makes it). As many followers as there are members
wait for the log, in one other process. They only read, since in a real run each computes on a node
of its own. Wall time, in ms:

*append*     one member's call: read the state, decide, commit by compare-and-set
*seen*       from the start of that call until a member has read the entry and recomputed it,
             which is when its effects are performed
*storm*      all members append at one instant, each through a connection of its own: until
             the last is committed, divided by the members; each lost race is decided again. One
             process decides for all of them here, and each on a node of its own in a run: an
             upper bound
*bare*       the compare-and-set alone, of a state and an entry of the same size
*decide*     decoding, deciding and encoding alone, which is processor time and no waiting

The repair that is timed: a node is lost, its shadow takes over and catches up, new replicas are
made, a node joins, gets what the lost one had, and takes the slot over.
"""

import argparse
import multiprocessing
import random
import tempfile
import threading
import time
from collections import defaultdict
from dataclasses import replace
from multiprocessing.synchronize import Event as Flag
from pathlib import Path
from typing import Any

from bamboo.coord.codec import decode_state, encode_state
from bamboo.coord.driver import Driver, create_run
from bamboo.coord.follow import Follower
from bamboo.coord.open import open_store
from bamboo.core.events import Event
from bamboo.core.machine import transition
from bamboo.ids import RunId
from bamboo.ports import Store
from benchmarks.control_plane import Run, formed, joined, repair
from benchmarks.measuring.options import at_least, parsed, selected
from benchmarks.measuring.report import command_of, median_and_quartiles, write_result
from testbed.store_server import start_store

RUN = RunId("bench")
SEEN_WITHIN_S = 10.0
STORMS = 3
STORM_S = 120.0
"""The longest wait for any of its threads."""


class Told(Run):
    """A run whose events go through a store."""

    def __init__(self, run: Run, driver: Driver, watch: "Watch") -> None:
        super().__init__(run.policy, run.state, run.nodes)
        self._driver, self._watch = driver, watch
        self.times_ms: dict[str, list[float]] = defaultdict(list)

    def say(self, event: Event) -> None:
        begin_s = time.perf_counter()
        appended = self._driver.append(event)
        took_s = time.perf_counter() - begin_s
        self.state = appended.state
        self.times_us[type(event).__name__].append(1e6 * took_s)
        self.times_ms["append"].append(1e3 * took_s)
        seen_s = self._watch.seen(appended.version)
        self.times_ms["seen"].append(1e3 * (seen_s - begin_s))


class Watch:
    """A follower in a thread, as a member has one. It reports when it knew each version."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url, RUN)
        self._stamps: dict[int, float] = {}
        self._changed = threading.Condition()
        self._ended = False
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        follower, version = Follower(), -1
        while not self._ended:
            entries = self._store.entries(after_version=version, timeout_s=0.2)
            if not entries:
                continue
            follower.read(entries)
            version = entries[-1].version
            with self._changed:
                self._stamps.update({e.version: time.perf_counter() for e in entries})
                self._changed.notify_all()

    def seen(self, version: int) -> float:
        with self._changed:
            if not self._changed.wait_for(lambda: version in self._stamps, SEEN_WITHIN_S):
                raise RuntimeError(f"version {version} was not seen for {SEEN_WITHIN_S:g} s")
            return self._stamps[version]

    def close(self) -> None:
        self._ended = True
        self._thread.join(SEEN_WITHIN_S)
        self._store.close()


def wait_at_the_log(url: str, members: int, ready: Flag, ended: Flag) -> None:
    """The connections of the other members, in a process of its own."""

    def follow(store: Store) -> None:
        version = -1
        while not ended.is_set():
            entries = store.entries(after_version=version, timeout_s=0.5)
            version = entries[-1].version if entries else version

    stores = [open_store(url, RUN) for _ in range(members)]
    threads = [threading.Thread(target=follow, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    ready.set()
    for thread in threads:
        thread.join()
    for store in stores:
        store.close()


def bare_ms(store: Store, rounds: int) -> list[float]:
    """The compare-and-set of the present state as the next version, without followers."""
    out = []
    for _ in range(rounds):
        snapshot = store.read()
        newest = store.entries(after_version=snapshot.version - 1, timeout_s=0.0)[0]
        begin_s = time.perf_counter()
        done = store.commit(
            expected_version=snapshot.version, state=snapshot.state, entry=newest.body
        )
        out.append(1e3 * (time.perf_counter() - begin_s))
        assert done, "somebody else wrote"
    return out


def storm_ms(url: str, told: Told, members: int) -> float:
    """A member's share of the time until nodes that join at one instant have all joined."""
    stores = [open_store(url, RUN) for _ in range(members)]
    drivers = [Driver(store, told.policy, f"n-{i}") for i, store in enumerate(stores)]
    opened_s: list[float] = []
    begin = threading.Barrier(
        members, action=lambda: opened_s.append(time.perf_counter()), timeout=60.0
    )

    def join(index: int) -> None:
        event = joined(told.nodes + index)
        begin.wait()
        drivers[index].append(event, deadline_s=60.0)

    threads = [
        threading.Thread(target=join, args=(index,), daemon=True) for index in range(members)
    ]
    before = stores[0].read().version
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(STORM_S)
    if not opened_s:
        raise RuntimeError(f"{members} threads did not come together to join at one instant")
    took_s = time.perf_counter() - opened_s[0]
    after = stores[0].read().version
    told.nodes += members
    told.state = decode_state(stores[0].read().state)
    if after - before < members:
        raise RuntimeError(f"{after - before} of {members} nodes joined")
    for store in stores:
        store.close()
    return 1e3 * took_s / members


def measure(members: int, rounds: int) -> dict[str, Any]:
    """All figures of one size."""
    rng = random.Random(1)
    with tempfile.TemporaryDirectory(prefix="bamboo-cas-") as folder:
        server = start_store(Path(folder))
        context = multiprocessing.get_context("spawn")
        ready, ended = context.Event(), context.Event()
        process = context.Process(
            target=wait_at_the_log, args=(server.url, members, ready, ended), daemon=True
        )
        try:
            store = open_store(server.url, RUN)
            run = formed(members)
            run.state = replace(run.state, version=0)  # a log begins with it
            assert create_run(
                store, state=run.state, policy=run.policy, documents={}, at_s=time.time()
            )
            process.start()
            if not ready.wait(60.0):
                raise RuntimeError("the followers did not start within 60 s")
            watch = Watch(server.url)
            try:
                told = Told(run, Driver(store, run.policy, "bench"), watch)
                repair(told, rng)
                told.times_ms.clear()
                told.times_us.clear()
                for _ in range(rounds):
                    repair(told, rng)
                size = len(encode_state(told.state))
                decided_ms = decide_ms(told)
                storms_ms = [storm_ms(server.url, told, members) for _ in range(STORMS)]
            finally:
                watch.close()
            ended.set()
            process.join(SEEN_WITHIN_S)
            bare = bare_ms(store, rounds)
            store.close()
        finally:
            ended.set()
            if process.pid is not None:
                process.join(SEEN_WITHIN_S)
            server.stop()
    return {
        "state_bytes": size,
        "append": told.times_ms["append"],
        "seen": told.times_ms["seen"],
        "bare": bare,
        "decide": decided_ms,
        "storm": storms_ms,
        "append_by_event_ms": {
            kind: [us / 1e3 for us in times] for kind, times in told.times_us.items()
        },
    }


def decide_ms(told: Told) -> list[float]:
    """The computing part of an append: decode, decide a join, encode."""
    out, text = [], encode_state(told.state)
    for number in range(20):
        event = joined(told.nodes + number)
        begin_s = time.perf_counter()
        encode_state(transition(decode_state(text), event, now_s=0.0, policy=told.policy).state)
        out.append(1e3 * (time.perf_counter() - begin_s))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=at_least(1), default=40)
    parser.add_argument("--members", type=at_least(2), nargs="+", default=[4, 64])
    arguments = parsed(parser)
    found = {}
    for members in arguments.members:
        found[members] = measure(members, arguments.rounds)
        one = found[members]
        print(f"{members} members, a state of {one['state_bytes']:,} bytes; ms")
        for name in ("append", "seen", "bare", "decide", "storm"):
            middle, low, high = median_and_quartiles(one[name])
            print(
                f"  {name:8} median {middle:8.2f}  quartiles {low:8.2f} - {high:8.2f}  "
                f"max {max(one[name]):8.2f}  of {len(one[name])}"
            )
        middle, *_ = median_and_quartiles(one["append"])
        print(f"  {1e3 / middle:.0f} decisions a second, one after the other, by one member")
    command = command_of("compare_and_set", arguments)
    part = selected(parser, arguments, "members")
    print(f"written: {write_result('compare-and-set', command, {'members': found}, *part).name}")


if __name__ == "__main__":
    main()
