"""Strategies at the command line: plan, explain, compare and refuse them, and builders of one's
own."""

import json
import re
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bamboo import api, wiring
from bamboo.config.load import load_job
from bamboo.config.tree import JobConfig
from bamboo.controller.terms import save_terms
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.written import facts_body
from bamboo.runs.run_folder import create, home
from bamboo.runtime.check import own_builder
from bamboo.study.compared import difference
from bamboo.study.planning import plan_job
from bamboo.study.strategies import read_strategy
from bamboo.telemetry.records import EventRecord
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Semantics, Strategy
from bamboo.topology.sync import Sync, SyncRule, unmatched
from cli.main import run
from cli.views.explain import explain_text
from tests.study.facts import seen
from tests.study.on_paper import body_of, in_folder, refused, sets

pytestmark = pytest.mark.timeout(120)
SPARSE = sets(
    *("cluster.pipelines=2", "cluster.stages=2", "train.batch=8"),
    *("model.layers=2", "model.vocabulary=8000"),
    *("cluster.device=virtual", "cluster.virtual_link_gbps=1.0"),
)
"""The embedding has 8,000 rows, and a microbatch 32 tokens."""
TREE = sets("cluster.sync=tree")


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_folder(tmp_path, monkeypatch)


def written(name: str, body: dict[str, Any]) -> str:
    Path(name).write_text(json.dumps(body))
    return name


def with_rules(body: dict[str, Any], *rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    """What plan printed, with these rules in its strategy."""
    placement = {**body["strategy"]["placement"], "sync": {"rules": rules, **more}}
    return {**body, "strategy": {**body["strategy"], "placement": placement}}


def test_a_plan_its_strategy_and_what_differs_have_the_same_bytes(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tree = body_of(capsys, "plan", "job.toml", "--json", *SPARSE, *TREE)
    rows = body_of(
        capsys, "plan", "job.toml", "--json", *SPARSE, *sets("cluster.sync=sparse-hybrid")
    )
    totals = rows["synced"]["bytes"]
    # One embedding of 8,000 x 64 in four bytes, twice: (k+1)(D-1)/D = 1 to the other pipeline.
    assert tree["synced"]["bytes"]["exchange_bytes"] == totals["tree_exchange_bytes"]
    assert totals["kinds"] == {"rows, rows": 1, "tree, dense": 28}
    assert totals["exchange_bytes"] < totals["tree_exchange_bytes"] - 0.9 * 8000 * 64 * 4 * 2
    # Only one of the files needs the shapes.
    found = body_of(capsys, "plan", "job.toml", "--json", *SPARSE, "--search", "1")
    assert found["synced"]["builder"] == "search 1"
    assert found["synced"]["bytes"]["exchange_bytes"] <= totals["exchange_bytes"], "that of auto"
    written("a.json", tree["strategy"])
    written("b.json", rows)
    found = body_of(capsys, "strategy", "diff", "a.json", "b.json", "--json")
    assert [one["name"] for one in found["changed"]] == ["0.tokens.weight"]
    assert [one["exchange"] for one in found["bytes"]] == [
        totals["tree_exchange_bytes"],
        totals["exchange_bytes"],
    ]
    assert run(["strategy", "diff", "a.json", "a.json"]) == 0
    assert "synchronised alike" in capsys.readouterr().out
    given = body_of(capsys, "plan", "job.toml", "--json", *SPARSE, "--strategy", "b.json")
    placed = [Strategy.from_json(json.dumps(one["strategy"])).placement for one in (rows, given)]
    assert placed[0] == placed[1]
    assert given["synced"]["builder"] == "b.json"


def test_explain_says_what_each_kind_costs_and_that_nothing_is_to_be_won(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = body_of(capsys, "explain", "job.toml", "--json", *SPARSE, *TREE)
    rows = {one["names"][0]: one for one in body["parameters"]}
    expand = rows["1.expand.weight"]
    assert (expand["shape"], expand["rows"], len(expand["names"])) == ([256, 64], 64, 2)
    assert expand["exchanges"]["tree"]["bytes"] == 4 * 256 * 64
    assert expand["exchanges"]["factors"]["bytes"] == 4 * 64 * (256 + 64)
    assert expand["break_even"]["by_bytes"] == pytest.approx(256 * 64 / (256 + 64))
    assert "K is 64 rows, more than the break-even of " in expand["why"]
    assert rows["0.tokens.weight"]["exchanges"]["rows"]["bytes"] < 8000 * 64
    assert "K counts tokens: a step has 8 x 16." in body["notes"][0]
    assert 'By sync = "auto" it would be' in body["sentence"]
    bare = body_of(capsys, "explain", "job.toml", "--json", *sets("cluster.pipelines=1"))
    assert "have no rate in the model, so bytes cost no time on them" in bare["sentence"]
    see = f"See `bamboo explain {Path('job.toml').resolve()} --gpu` for the links of the job's "
    assert see in bare["sentence"], "the command runs in any folder"
    assert run(["explain", "job.toml", *SPARSE, *TREE]) == 0
    text = capsys.readouterr().out
    assert "2 pipelines of 2 stages, gradients by tree" in text
    assert "\n  *.expand.weight (2)  " in text
    assert " vectors: A vector goes whole." in text
    assert "0.tokens.weight: A step sets bits in " in text
    assert "these alone would be cheaper, " in " ".join(text.split())
    narrow = explain_text(api.explain("job.toml", overrides=(*SPARSE, *TREE)[1::2]), width=72)
    assert "left out for lack of width: by bytes, shape, density" in narrow
    assert "left out for lack of width: owner" in narrow


def test_explain_says_that_auto_changes_nothing_for_less_than_a_hundredth(
    capsys: pytest.CaptureFixture[str],
) -> None:
    slow = sets("cluster.virtual_forward_ms=[500.0]", "cluster.virtual_link_gbps=2.0")
    least = "; auto takes no other kind for less than 1 % of a step."
    body = body_of(capsys, "explain", "job.toml", "--json", *SPARSE, *slow)
    assert body["bytes"]["kinds"] == {"tree, dense": 29}
    assert 'By sync = "sparse-hybrid" it would be ' in body["sentence"]
    assert body["sentence"].endswith(least)
    tree = body_of(capsys, "explain", "job.toml", "--json", *SPARSE, *slow, *TREE)
    assert tree["sentence"] == body["sentence"].replace(least, ".")


def test_explain_counts_rows_where_data_are_no_text(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A microbatch of two samples, of which a layer sees 16 places each, four times a step."""

    def images(job: JobConfig, **more: Any) -> dict[str, Any]:
        return {**seen(job, **more), "data": {}, "unit": "image"}

    monkeypatch.setattr(wiring, "run_preflight", images)
    body = body_of(capsys, "explain", "job.toml", "--json", *sets("model.layers=2"), *SPARSE)
    said = "K counts rows: a pipeline's step has 4 samples, of each of which "
    assert body["notes"][0] == f"{said}linear layers see 16 rows."


CHOSEN = "strategy 1 (0123) counts from step 41 on: a trial of `rows`"


def test_explain_of_a_run_reads_what_is_kept_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    job = load_job("job.toml", [*SPARSE[1::2], "cluster.sync=sparse-hybrid"])
    planned = plan_job(job, seen(job), run=RunId("r1"), now_s=0.0)
    folder = create(home(), RunId("r1"))
    save_terms(folder, planned.job, planned, started_s=0.0, detached=False)
    folder.events.mkdir()
    told = [
        ("Density", {"of_step": 20, "density": {"0.tokens.weight": 0.01}}),
        ("Density", {"of_step": 40, "density": {"0.tokens.weight": 0.03}}),
        ("StrategyReady", {"reason": f"a.1 has the strategy 0123 and has begun step 37; {CHOSEN}"}),
        ("StrategyReady", {"reason": "a.1 has the strategy 4567; waiting for 3 more"}),
    ]
    lines = [
        EventRecord(t_s=1.0, run="r1", generation=1, node="launcher", kind=kind, data=data)
        for kind, data in told
    ]
    books = folder.events / "launcher.jsonl"
    books.write_text("".join(f"{one.to_json()}\n" for one in lines))
    body = body_of(capsys, "explain", "r1", "--json")
    (row,) = [one for one in body["parameters"] if one["names"] == ["0.tokens.weight"]]
    assert (row["exchange"], row["density_lately"]) == ("rows", pytest.approx(0.02))
    assert body["notes"][-1].endswith(f"; the last decision: {CHOSEN}.")
    assert "leave them out" in refused(capsys, ["explain", "r1", "--gpu", "T4"])
    kept = json.loads(folder.resolved.read_text())
    situation, (fact, *facts) = kept["synced"]["situation"], kept["synced"]["parameters"]
    spoiled = [{**situation, name: odd} for name in situation for odd in ("x", {}, [None], -1)]
    spoiled += [{**situation, "message_s": float("nan")}, {**situation, "cut": [0, 2, 2]}]
    spoiled += [{**situation, name: [1.0] * 9} for name in ("ends_s", "passed_s", "busy_s")]
    synced = [{**kept["synced"], "situation": one} for one in spoiled]
    synced += [{**kept["synced"], "parameters": [{**fact, "name": "other"}, *facts]}]
    for one in synced:
        folder.resolved.write_text(json.dumps({**kept, "synced": one}))
        assert "resolved.json is damaged: " in refused(capsys, ["explain", "r1"])


def test_a_resume_keeps_rules_from_a_file_on_whatever_grid_it_has(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [*SPARSE, *sets("cluster.sync=sparse-hybrid")]
    written("rows.json", body_of(capsys, "plan", "job.toml", "--json", *rows))
    given = read_strategy(Path("rows.json"))
    overrides = [*SPARSE[1::2], "cluster.pipelines=1", "cluster.stages=1", "cluster.redundancy=off"]
    job = load_job("job.toml", overrides)
    kept = replace(given, places=False)
    planned = plan_job(job, seen(job), run=RunId("r"), now_s=0.0, given=kept)
    placement = planned.strategy.placement
    assert placement.grid == Grid(pipelines=1, stages=1)
    assert placement.sync == given.placement.sync != Sync()


WRONG = {
    "matches no trained parameter": [{"match": "9.*"}],
    "both match '0.tokens.weight'": [{"match": "0.*"}, {"match": "*.tokens.weight"}],
    "0.tokens.weight cannot go by factors: it is the table of an embedding": [
        {"match": "0.tokens.weight", "exchange": "factors"}
    ],
    "1.qkv.bias cannot go by rows: it is a vector": [{"match": "1.qkv.bias", "exchange": "rows"}],
    "has the owner 2, and the grid has pipelines 0 to 1": [
        {"match": "*", "exchange": "owner", "owners": [2]}
    ],
    "needs the pipelines in two zones": [{"match": "*", "exchange": "zoned"}],
    "is none of tree, owner": [{"match": "*", "exchange": "ring"}],
    "a pattern has 8,000 characters, and no name of a parameter more than 4,096": [
        {"match": "*a" * 4000}
    ],
    "its rules come to 8,800,": [{"match": "*", "exchange": "owner", "owners": [0, 1] * 2_200_000}],
}


def test_rules_that_make_no_sense_are_refused_before_anything_is_rented(
    capsys: pytest.CaptureFixture[str],
) -> None:
    body = body_of(capsys, "plan", "job.toml", "--json", *SPARSE)
    for said, rules in WRONG.items():
        written("wrong.json", with_rules(body, *rules))
        error = refused(capsys, ["plan", "job.toml", *SPARSE, "--strategy", "wrong.json"])
        assert "wrong.json: " in error
        assert said in error
    apart = with_rules(body, {"match": "*", "exchange": "zoned"}, zones=[0, 1])
    written("wrong.json", apart)
    plan = ["plan", "job.toml", *SPARSE, "--strategy", "wrong.json"]
    assert "saves nothing for shares [1, 1] in zones [0, 1]" in refused(capsys, plan)
    assert "contradicts wrong.json" in refused(capsys, [*plan, *sets("cluster.sync=auto")])
    assert "give one of them" in refused(capsys, [*plan, "--nodes", "4"])
    strategy = Strategy.from_json(json.dumps(body["strategy"]))
    narrow = replace(strategy.semantics, model={**strategy.semantics.model, "width": 32})
    written("one.json", body)
    written("other.json", json.loads(replace(strategy, semantics=narrow).to_json()))
    assert refused(capsys, ["strategy", "diff", "one.json", "other.json"]) == (
        "error: one.json: is a strategy of another model: model.width is 64 there and 32 in "
        "other.json; compare two of one job\n"
    )
    for name, digest in (("one.json", "1"), ("other.json", "2")):
        code = {"model.py": digest * 64, "layers.py": "0" * 64}
        model = {**strategy.semantics.model, "code": code}
        coded = replace(strategy, semantics=replace(strategy.semantics, model=model))
        written(name, json.loads(coded.to_json()))
    said = refused(capsys, ["strategy", "diff", "one.json", "other.json"])
    assert "another model: model.code.model.py is '111111111111…' there and '2222" in said
    assert "layers.py" not in said, "what is the same"
    text = json.dumps(body).replace('"sync": ', '"sync": {"rules": []}, "sync": ')
    Path("wrong.json").write_text(text)
    assert "wrong.json: is no strategy: it names 'sync' twice" in refused(capsys, plan)
    del body["strategy"]["semantics"]["seed"]
    written("wrong.json", body)
    assert "wrong.json: is no strategy" in refused(capsys, plan)
    assert "wrong.json: is no strategy" in refused(
        capsys, ["strategy", "diff", "wrong.json", "wrong.json"]
    )
    assert "is no builder" in refused(capsys, ["plan", "job.toml", *sets("cluster.sync=ring")])
    assert "there is no file" in refused(capsys, ["plan", "job.toml", *sets("cluster.sync=a.py:b")])


def change_facts(body: dict[str, Any], **change: Any) -> None:
    body["synced"]["parameters"][0].update(change)


def change_semantics(body: dict[str, Any], **change: Any) -> None:
    semantics = {**body["strategy"]["semantics"], **change}
    body["strategy"] |= {"semantics": semantics, "semantic_hash": Semantics(**semantics).hash()}


@pytest.mark.parametrize(
    ("bend", "said"),
    [
        (partial(change_facts, layer=99), "0.weight is in none of the 2 layers of its cut"),
        (partial(change_facts, layer="0"), "a parameter has no layer '0'"),
        (partial(change_facts, name=[1]), "a parameter has no name [1]"),
        (partial(change_facts, shape=[2**40, 2**40]), "no parameter is as large as"),
        (partial(change_semantics, virtual_nodes=1), "1 virtual nodes cannot feed 2 pipelines"),
        (partial(change_semantics, batch="8"), "batch is '8'; it is a whole number"),
        (partial(change_semantics, microbatch=0), "microbatch is 0; it is a whole number"),
        (partial(change_semantics, virtual_nodes=2**40), "virtual_nodes is 1099511627776; it is"),
    ],
)
def test_figures_from_which_no_bytes_follow_are_refused(
    bend: Callable[[dict[str, Any]], None], said: str
) -> None:
    strategy = Strategy(
        semantics=Semantics(
            model={},
            data_digest="",
            batch=8,
            microbatch=1,
            virtual_nodes=4,
            seed=1,
            steps=3,
            optimizer={},
            precision="fp32",
            clip_norm=0.0,
        ),
        placement=Placement(cut=(0, 2), grid=Grid(pipelines=2, stages=1), redundancy="off"),
    )
    fact = facts_body(ParameterFacts(name="0.weight", shape=(4, 3), layer=0))
    body = {"strategy": json.loads(strategy.to_json()), "synced": {"parameters": [fact]}}
    assert difference(*[Path(written("a.json", body))] * 2).parameters == 1
    bend(body)
    with pytest.raises(InputError, match=re.escape(said)):
        difference(*[Path(written("a.json", body))] * 2)


def test_factors_that_no_node_has_the_memory_for_are_refused_with_the_bytes(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def by_factors(file: Path, function: str, facts: Any, situation: object) -> dict[str, Any]:
        kinds = [("factors", "factors") if one["rows_k"] else ("tree", "dense") for one in facts]
        named = zip(facts, kinds, strict=True)
        rules = [{"match": one["name"], "exchange": x, "ship": s} for one, (x, s) in named]
        return {"rules": rules}

    monkeypatch.setattr(wiring, "run_builder", by_factors)
    Path("mine.py").write_text("")
    rows = sets("model.context=32768", "train.batch=64", "train.microbatch=32")
    wide = [*SPARSE, *rows, *sets("model.width=256", "cluster.sync=mine.py:build")]
    error = refused(capsys, ["explain", "job.toml", *wide])
    assert "cluster.sync = 'mine.py:build': does not fit: a node of stage 0 would hold" in error
    assert "GiB of it factors, and one T4 has 15.2 GiB" in error


OWN = """
from bamboo.topology.sync import SyncRule

def build(facts, situation):
    rules = [SyncRule(match=f.name, exchange="rows") for f in facts if f.rows and f.density < 1]
    taken = {rule.match for rule in rules}
    assert situation.pipelines == 2
    return rules + [SyncRule(match=f.name) for f in facts if f.name not in taken]
"""
OTHERS = {
    "raise KeyError('width')": "KeyError: 'width', at mine.py, line 2, in build",
    "return 7": "it returned 7, which is no list of rules",
    "return [{'match': '*', 'exchange': 'ring'}]": "exchange 'ring' is none of tree",
    "return [{'match': 3}]": "needs a pattern `match`, not 3",
    "return [{'match': '1.*', 'exchange': 'tree'}]": "no rule of it matches 0.tokens.weight, ",
    "return [object()]": "it returned [<object object at",
    "raise SystemExit": "SystemExit:",
    "raise KeyboardInterrupt": "KeyboardInterrupt:",
}


def test_a_builder_of_the_users_own_makes_rules_or_is_named_with_what_it_did(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    own = [*SPARSE, *sets("cluster.sync=mine.py:build")]
    Path("mine.py").write_text(OWN)
    made = body_of(capsys, "plan", "job.toml", "--json", *own)
    by_name = body_of(capsys, "plan", "job.toml", "--json", *SPARSE)
    assert made["synced"]["bytes"]["kinds"] == {"rows, dense": 1, "tree, dense": 28}
    # It is no part of what is trained.
    assert made["semantic_hash"] == by_name["semantic_hash"]

    def here(file: Path, function: str, facts: object, situation: object) -> dict[str, Any]:
        asked = {"file": str(file), "function": function, "facts": facts, "situation": situation}
        return own_builder.asked(json.loads(json.dumps(asked)))

    monkeypatch.setattr(wiring, "run_builder", here)
    for line, said in OTHERS.items():
        Path("mine.py").write_text(f"def build(facts, situation):\n    {line}\n")
        error = refused(capsys, ["plan", "job.toml", *own])
        assert "cluster.sync = 'mine.py:build': " in error
        assert said in error
    Path("mine.py").write_text("x = 1\n")
    error = refused(capsys, ["plan", "job.toml", *own])
    assert "'mine.py:build': mine.py has no function 'build'; define it there" in error


def test_a_builder_may_name_each_of_very_many_parameters() -> None:
    """Not all names are compared with all rules, which would take minutes."""
    names = [f"0.part{number}.weight" for number in range(20_000)]
    rules = [SyncRule(match=name) for name in names[1:]]
    more = [SyncRule(match="0.[[]CLS].weight"), SyncRule(match="*.bias")]
    asked = [*names, "0.[CLS].weight", "0.a.bias", "0.b.bias"]
    begun_s = time.process_time()
    assert unmatched(Sync(rules=(*rules, *more)), asked) == [names[0]]
    assert time.process_time() - begun_s < 10


ENDS = {
    "os._exit(0)": "ended with status 0: it said nothing; see whether your code ends its process",
    "os.kill(os.getpid(), signal.SIGSEGV)": "ended with status -11: ",
    "os.kill(os.getpid(), signal.SIGKILL)": "was killed by SIGKILL, ",
    "os.kill(os.getpid(), signal.SIGSTOP)": "had no answer after 3 s; make it faster, or name one",
    "[os.write(fd, b'{}\\n') for fd in range(3, 9)]; os._exit(2)": "answered with '{}', ",
    "[os.write(fd, b'[\\n') for fd in range(3, 9)]; return []": "answered with '[', ",
    "raise type('E', (Exception,), {'__str__': lambda self: 1 / 0})": (
        "E: its text cannot be had (ZeroDivisionError), at mine.py, line 4, in build: "
    ),
    "raise type('E', (BaseException,), {})('mine')": "E: mine",
}


@pytest.mark.parametrize("line", ENDS)
def test_a_builder_that_ends_its_process_or_never_answers_is_refused_in_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr(wiring, "BUILDER_DEADLINE_S", 3.0)
    header = "import os, signal\n\ndef build(facts, situation):\n"
    Path("mine.py").write_text(f"{header}    {line}\n")
    error = refused(capsys, ["plan", "job.toml", *SPARSE, *sets("cluster.sync=mine.py:build")])
    assert "job.toml: cluster.sync = 'mine.py:build': " in error
    assert ENDS[line] in error
