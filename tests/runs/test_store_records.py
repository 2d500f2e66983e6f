"""What members say in the store: nothing damaged or foreign in it ends a run or hides the rest."""

import json
from pathlib import Path

from bamboo.billing.run_cost import told_by_decisions
from bamboo.config.load import job_to_json
from bamboo.config.resolve import resolve
from bamboo.controller.watching import Watcher
from bamboo.ids import run_id
from bamboo.runs import run_folder
from bamboo.runs.run_status import progress_from_store
from tests.controller.world import World, finished, job, joined, left, node, step

BEATS = [
    "{",
    "[]",
    '{"ops": {"F": "many"}}',
    '{"ops": 3}',
    '{"busy_s": 1.0}',
    '{"step": 1e999}',
    '{"busy_s": NaN, "ops": {"F": 1}}',
]
METRICS = [
    "[" * 100_000,
    "7",
    '{"kind": "step"}',
    '{"kind": "step", "step": -1, "loss": 1.0, "t_s": 1.0}',
    '{"kind": "step", "step": 0, "loss": "low", "t_s": 1.0}',
    '{"kind": "step", "step": 0, "loss": 1.0, "t_s": Infinity}',
    '{"kind": "step", "step": 0, "loss": 1.0, "t_s": 1.0, "used": {}}',
    '{"kind": "step", "step": 0, "loss": 1.0, "t_s": 1.0, "count": -1}',
    '{"kind": "step", "step": 0, "loss": 1.0, "t_s": 1.0, "metrics": {"a": "b"}}',
    '{"kind": "failover", "seen_s": "then", "decided_s": 1.0}',
    '{"kind": "memory", "node": "i-0.0"}',
    '{"kind": "memory", "node": "i-0.0", "peak_tensor_bytes": 1, "busy_s": {"F": null}}',
]


def test_what_is_no_document_of_a_member_is_passed_over_and_told_of_once() -> None:
    world = World(job())
    world._script = [
        joined(),
        *[lambda text=text: world.store.beat(node(0), text) for text in BEATS],
        *[lambda text=text: world.store.append("metrics", text) for text in METRICS],
        [step(0), step(1), step(2)],
        finished(2, 0, 1, 2, 3),
        left(0, 1, 2, 3),
    ]
    end = world.launcher.run()
    assert (end.step, end.first_loss, end.work) == (3, 4.0, {})
    passed_over = [note for note in world.screen.notes if note.startswith("passed over")]
    assert sorted(note.split(",")[0] for note in passed_over) == [
        "passed over in the store's beats",
        "passed over in the store's metrics",
    ]
    assert len(world.books.metrics) == 3


def test_who_takes_up_a_run_passes_over_what_is_no_record_of_its_ledger() -> None:
    world = World(job())
    world.store.append("ledger", '{"kind": "price"}')
    world._script = [
        joined(),
        [step(0), step(1), step(2)],
        finished(2, 0, 1, 2, 3),
        left(0, 1, 2, 3),
    ]
    assert world.launcher.run().step == 3
    assert any("in the store's ledger" in note for note in world.screen.notes)


def test_whoever_looks_from_outside_passes_it_over_too(tmp_path: Path) -> None:
    folder = run_folder.create(tmp_path, run_id("r"))
    body = json.loads(job_to_json(resolve(job())))["job"]
    run_folder.write_json(folder.resolved, {"run": "r", "started_s": 1.0, "job": body})
    world = World(job())
    world.do([joined(), step(0)])
    for text in METRICS:
        world.store.append("metrics", text)
    world.store.append("ledger", "[]")
    world.store.beat(node(0), BEATS[0])
    world.do(step(1))
    assert progress_from_store(folder, world.store).step == 2
    world._script = [[]]
    watcher = Watcher(folder, world.screen)
    watcher.turn(world.store, timeout_s=0.0)
    assert watcher.progress.step == 2
    notes = [n for n in world.screen.notes if n.startswith("passed over")]
    assert len(notes) == 3
    assert told_by_decisions(folder, world.store, number=1).changes
