"""Reading a run from outside: from its store while it lives, from its files afterwards."""

import json
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest

from bamboo.billing.run_cost import cost_of_run
from bamboo.config.load import job_to_json
from bamboo.config.resolve import resolve
from bamboo.coord.follow import Follower, all_records
from bamboo.errors import BambooError, InputError, StoreUnavailable
from bamboo.ids import run_id
from bamboo.jsonl import LineWriter
from bamboo.ports import Store
from bamboo.runs import lock, run_folder
from bamboo.runs.decisions import check_decisions, save_decisions
from bamboo.runs.run_status import status_of
from bamboo.telemetry.records import MetricRecord
from cli import main
from tests.controller.world import (
    START_S,
    World,
    caught_up,
    finished,
    job,
    joined,
    left,
    lost,
    step,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    return tmp_path


def folder_of(home: Path, name: str = "r", *, started_s: float = START_S) -> run_folder.RunFolder:
    folder = run_folder.create(home, run_id(name))
    body = json.loads(job_to_json(resolve(job())))["job"]
    run_folder.write_json(folder.resolved, {"run": name, "started_s": started_s, "job": body})
    return folder


def write_steps(folder: run_folder.RunFolder, count: int) -> None:
    """Metrics of so many steps, as a launcher that is gone wrote them."""
    with LineWriter(folder.metrics) as writer:
        for index in range(count):
            writer.write(
                MetricRecord(
                    step=index, loss=5.0 - index, tokens_per_s=1.0, usd=0.25, tokens_per_usd=1.0
                ).to_json()
            )


def live(folder: run_folder.RunFolder, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the run's store reachable through its endpoint file."""

    @contextmanager
    def store_of(run: object, url: str) -> Iterator[Store]:
        assert url == "redis://here"
        yield world.store

    run_folder.write_json(folder.endpoint, {"store_url": "redis://here"})
    monkeypatch.setattr("bamboo.wiring.store_of", store_of)


def test_a_live_run_is_read_from_its_store(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, world = folder_of(home), World(job())
    live(folder, world, monkeypatch)
    world.do([joined(), step(0, 5.0), lost(2, 1), caught_up(1, 2), step(1, 4.0)])
    body = status_of(folder)
    assert (body["phase"], body["step"], body["loss"]) == ("degraded", 2, 4.0)
    assert body["preemptions"] == 1
    assert [n["owns"] for n in body["nodes"]] == [["0.0"], ["0.1", "0.2"], ["0.3"], []]
    with pytest.raises(InputError, match="still empty"):
        cost_of_run(folder)


@pytest.fixture
def reached(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[World, pytest.CaptureFixture[str]]:
    """A live run `r`, and what the command line prints."""
    world = World(job())
    live(folder_of(home), world, monkeypatch)
    return world, capsys


@pytest.mark.parametrize(
    ("waits", "outcome", "words"),
    [([], "stopped", "stopped before training began"), (["--no-wait"], None, "asked to stop")],
)
def test_stop_says_what_became_of_it(
    reached: tuple[World, pytest.CaptureFixture[str]],
    waits: list[str],
    outcome: str | None,
    words: str,
) -> None:
    world, capsys = reached
    world.do(joined(2))
    assert main.run(["stop", "r", *waits, "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert (body["run"], body["outcome"]) == ("r", outcome)
    assert words in body["sentence"]
    assert world.driver.state().outcome == "stopped"


def test_the_ledger_is_what_a_live_run_costs(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of(home)
    world = World(job(), [joined(), step(0), step(1), [step(2), finished(2, 0, 1, 2, 3)],
                          left(0, 1, 2, 3)])  # fmt: skip
    live(folder, world, monkeypatch)
    monkeypatch.setattr("bamboo.controller.launcher.TURN_S", 0.0)
    end = world.launcher.run()
    body = cost_of_run(folder, now_s=world.clock_s)
    assert body["usd"] == end.usd == status_of(folder)["usd"]
    assert body["on_demand_usd"] == pytest.approx(2 * end.usd)
    assert body["tokens_per_usd"] == pytest.approx(end.tokens_per_usd)


def test_a_run_whose_launcher_was_killed_is_lost(home: Path) -> None:
    folder = folder_of(home)
    run_folder.write_json(folder.endpoint, {"store_url": "unix:///nowhere/v.sock?db=0"})
    write_steps(folder, 3)
    body = status_of(folder)
    assert (body["phase"], body["step"], body["loss"], body["usd"]) == ("lost", 3, 3.0, 0.25)
    for arguments in (["stop", "r"], ["preempt", "r", "--stage", "1"], ["cost", "r"]):
        assert main.run(arguments) == 2


def test_a_run_whose_store_does_not_answer_is_not_lost_while_it_has_a_launcher(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(home)
    run_folder.write_json(folder.endpoint, {"store_url": "redis://there/0"})
    write_steps(folder, 3)

    def away(run: str, url: str) -> NoReturn:
        raise StoreUnavailable(f"the store at {url} cannot be reached")

    monkeypatch.setattr("bamboo.wiring.store_of", away)
    held = lock.take(folder)
    assert held is not None
    body = status_of(folder)
    assert (body["phase"], body["step"], body["usd"], body["led"]) == ("silent", 3, 0.25, True)
    assert "its store does not answer and its launcher lives" in body["sentence"]
    run_folder.write_json(folder.receipt, {"status": {"phase": "finished"}})
    assert status_of(folder)["phase"] == "finished"
    folder.receipt.unlink()
    held.close()
    assert status_of(folder)["phase"] == "lost"


def test_a_run_whose_end_is_written_down_is_not_lost_while_it_has_a_launcher(home: Path) -> None:
    folder = folder_of(home)
    run_folder.write_json(folder.endpoint, {"store_url": "unix:///nowhere/v.sock?db=0"})
    write_steps(folder, 3)
    folder.cloud.touch()
    held = lock.take(folder)
    assert held is not None
    body = status_of(folder)
    assert (body["phase"], body["step"], body["ended"]) == ("silent", 3, False)
    assert "its store is gone and its launcher lives" in body["sentence"]
    cost = cost_of_run(folder)
    assert (cost["ended"], cost["usd"], cost["silent"]) == (False, 0.25, body["sentence"])
    held.close()
    assert (status_of(folder)["phase"], status_of(folder)["ended"]) == ("lost", False)


def test_an_ended_run_is_read_from_its_receipt(home: Path) -> None:
    folder = folder_of(home)
    run_folder.write_json(folder.receipt, {"status": {"phase": "finished", "step": 7}})
    assert status_of(folder) == {"phase": "finished", "step": 7, "ended": True}


def test_list_names_every_run_oldest_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder_of(home, "b", started_s=20.0)
    folder_of(home, "a", started_s=30.0)
    assert main.run(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["run"], r["started"], r["phase"]) for r in rows] == [
        ("b", "1970-01-01T00:00:20+00:00", "lost"), ("a", "1970-01-01T00:00:30+00:00", "lost"),
    ]  # fmt: skip
    assert {"run", "started", "phase", "step", "steps", "usd"} <= rows[0].keys()
    assert main.run(["list"]) == 0
    assert capsys.readouterr().out.splitlines()[0].startswith("run ")


def test_no_runs_are_no_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["list"]) == 0
    assert capsys.readouterr().out == f"no runs in {home}\n"
    assert main.run(["list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_decisions_are_saved_and_recomputed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, world = folder_of(home), World(job())
    world.do([joined(), lost(2, 1), caught_up(1, 2)])
    assert save_decisions(folder, world.store) == 7
    assert check_decisions(folder) == {
        "run": "r",
        "equal": True,
        "decisions": 6,
        "parts": [{"part": 1, "decisions": 6, "first_version": 0}],
        "unsaved_parts": [],
        "first_difference": None,
    }
    assert main.run(["verify", "r", "--decisions", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["equal"] is True


def test_the_decisions_of_earlier_parts_are_recomputed_too(home: Path) -> None:
    folder, world = folder_of(home), World(job())
    world.do([joined(), lost(2, 1), caught_up(1, 2)])
    save_decisions(folder, world.store)
    body = folder.read_json(folder.resolved)
    run_folder.write_json(folder.resolved, {**body, "part": 3, "part_started_s": 9.0})
    first = folder.path / "parts" / "1" / folder.decisions.name
    first.parent.mkdir(parents=True)
    text = folder.decisions.read_text()
    first.write_text(text)
    found = check_decisions(folder)
    assert (found["equal"], found["decisions"], found["unsaved_parts"]) == (True, 12, [2])
    first.write_text(text.replace("its shadow i-1.0 takes over", "its shadow i-0.0 takes over", 1))
    found = check_decisions(folder)
    assert not found["equal"]
    assert str(found["first_difference"]).startswith("part 1: ")


def test_where_no_decision_is_nothing_is_called_equal(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, world = folder_of(home), World(job())
    live(folder, world, monkeypatch)
    assert main.run(["verify", "r", "--decisions"]) == 2
    assert "no decision so far: there is nothing to recompute" in capsys.readouterr().err
    assert save_decisions(folder, world.store) == 1
    run_folder.write_json(folder.receipt, {"status": {}})
    assert main.run(["verify", "r", "--decisions"]) == 2
    assert "no decision before it ended: there is nothing to recompute" in capsys.readouterr().err
    folder.decisions.unlink()
    assert main.run(["verify", "r", "--decisions"]) == 2
    assert f"{folder.decisions} is missing: it was taken away" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("its shadow i-1.0 takes over", "its shadow i-0.0 takes over"),
        ('\\"cause\\":\\"disconnect\\"', '\\"cause\\":\\"lease\\"'),
        ('\\"kind\\":\\"Promote\\"', '\\"kind\\":\\"Resend\\"'),
    ],
)
def test_an_edited_decision_is_found(
    home: Path, capsys: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    folder, world = folder_of(home), World(job())
    world.do([joined(), lost(2, 1), caught_up(1, 2)])
    save_decisions(folder, world.store)
    text = folder.decisions.read_text()
    assert old in text
    folder.decisions.write_text(text.replace(old, new, 1))
    assert main.run(["verify", "r", "--decisions"]) in (2, 5)
    assert "error: " in capsys.readouterr().err


@pytest.mark.parametrize("damage", ["", "{}\n", "not json\n"])
def test_a_damaged_decision_file_is_said_to_be_one(home: Path, damage: str) -> None:
    folder = folder_of(home)
    folder.decisions.write_text(damage)
    with pytest.raises(InputError, match=r"decisions\.jsonl"):
        check_decisions(folder)


def test_a_follower_notices_another_brain(home: Path) -> None:
    world = World(job())
    world.do(joined())
    entries = list(world.store.entries(after_version=-1, timeout_s=0.0))
    follower = Follower()
    assert follower.state is None
    with pytest.raises(BambooError, match="first entry is missing"):
        Follower().read(entries[1:])
    forged = json.loads(entries[1].body) | {"state_hash": "0" * 16}
    entry = type(entries[1])(version=1, body=json.dumps(forged))
    with pytest.raises(BambooError, match="another state"):
        follower.read([entries[0], entry])


def test_all_records_come_in_order_however_they_are_portioned() -> None:
    world = World(job())
    values = [str(random.Random(n).random()) for n in range(50)]
    for value in values:
        world.store.append("notes", value)
    assert list(all_records(world.store, "notes")) == values


def test_logs(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folder_of(home)
    folder.events.mkdir()
    (folder.events / "launcher.jsonl").write_text(
        '{"v":1,"t":1.25,"run":"r","gen":0,"node":"launcher","kind":"NodeJoined","data":{}}\n'
    )
    (folder.path / "logs").mkdir()
    (folder.path / "logs" / "i-1.0.log").write_text("hello\nwor")
    assert main.run(["logs", "r"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "launcher  00:00:01.250  step -  generation 0  NodeJoined", "i-1.0  hello",
    ]  # fmt: skip
    assert main.run(["logs", "r", "--node", "launcher", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["event"]["kind"] == "NodeJoined"
    (folder.path / "logs" / "store.log").write_text("chatter\n")
    assert main.run(["logs", "r"]) == 0
    assert "chatter" not in capsys.readouterr().out
    assert main.run(["logs", "r", "--node", "store"]) == 0
    assert capsys.readouterr().out == "store  chatter\n"
    assert main.run(["logs", "r", "--node", "i-1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"source": "i-1.0", "line": "hello"}
    assert main.run(["logs", "r", "--node", "i-7"]) == 2
    assert "it has: launcher, i-1.0" in capsys.readouterr().err


def test_following_logs_ends_with_the_run(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = folder_of(home)
    run_folder.write_json(folder.endpoint, {"store_url": "redis://here"})
    log = folder.path / "logs" / "i-1.log"
    log.parent.mkdir()
    log.write_text("one\n")
    rest = ["two\n", "three\n"]

    def later(_: float) -> None:
        with log.open("a") as file:
            file.write(rest.pop(0))
        if not rest:
            run_folder.write_json(folder.receipt, {})

    monkeypatch.setattr("bamboo.sites.run_logs.time.sleep", later)
    assert main.run(["logs", "r", "--follow"]) == 0
    assert capsys.readouterr().out.splitlines() == ["i-1  one", "i-1  two", "i-1  three"]


def test_a_run_that_starts_is_not_taken_for_a_lost_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(home, started_s=time.time())
    assert status_of(folder)["phase"] == "forming"
    assert main.run(["stop", "r"]) == 2
    assert capsys.readouterr().err == "error: run r is still starting; ask again in a moment\n"
    old = folder_of(home, "old")
    assert status_of(old)["phase"] == "lost"


def test_a_resumed_run_that_starts_still_has_its_steps(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it has its dollars: also while its new store is empty, and after an interrupt then."""
    now_s = time.time()
    folder = folder_of(home, started_s=now_s)
    body = folder.read_json(folder.resolved) | {"part": 2, "part_started_s": now_s}
    run_folder.write_json(folder.resolved, body)
    write_steps(folder, 3)
    seen = status_of(folder)
    assert (seen["phase"], seen["step"], seen["loss"], seen["usd"]) == ("forming", 3, 3.0, 0.25)
    live(folder, World(job()), monkeypatch)
    seen = status_of(folder)
    assert (seen["phase"], seen["step"], seen["loss"], seen["usd"]) == ("forming", 3, 3.0, 0.25)


def test_only_what_ended_in_order_is_verified(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = folder_of(home)
    assert main.run(["verify", "r"]) == 2
    assert "verify works once a run has ended in order" in capsys.readouterr().err
    held = lock.take(run_folder.find(run_folder.home(), "r"))
    assert held is not None
    said = []
    for verb in ("verify", "resume"):
        assert main.run([verb, "r"]) == 2
        said.append(capsys.readouterr().err.splitlines()[-1])
    held.close()
    assert said[0] == said[1]
    assert "run r is going on; `bamboo attach r` shows it, `bamboo stop r` ends it" in said[0]
    run_folder.write_json(folder.receipt, {"outcome": "unrecoverable"})
    assert main.run(["verify", "r"]) == 2
    assert "run r ended unrecoverable without a final state" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["status", "logs", "stop", "verify", "cost"])
def test_an_unknown_run_is_one_line_and_exit_2(
    home: Path, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    folder_of(home)
    assert main.run([verb, "nope"]) == 2
    assert capsys.readouterr().err == (
        f"error: unknown run 'nope' in {home}; `bamboo list` shows what is there\n"
    )
