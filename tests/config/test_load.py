"""Job files: what is read, what is refused, and that each refusal names file, key and remedy."""

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from bamboo.config.check import check_inputs
from bamboo.config.load import job_from_json, job_to_json, job_with, load_job
from bamboo.config.parse import sections
from bamboo.config.policy import policy_of
from bamboo.config.resolve import resolve, semantics
from bamboo.config.tree import JobConfig, Kill
from bamboo.errors import InputError
from bamboo.topology.strategy import REPLICA_MODES
from tests.jobs import tiny_job

EXAMPLES = Path(__file__).parents[2] / "examples"

REFUSED = [
    ("train.stps=3", "--set: train.stps = 3: is unknown; did you mean 'steps'?"),
    ("trian.steps=3", "--set: [trian]: is unknown; did you mean 'train'?"),
    ("train.zzz=3", "the keys of train are steps, batch"),
    ("train.steps=x", "train.steps = 'x': must be a whole number; write it in digits, such as 4"),
    ("train.steps=1.5", "train.steps = 1.5: must be a whole number"),
    ("train.steps=true", "train.steps = True: must be a whole number"),
    ("model.tied=1", "model.tied = 1: must be true or false"),
    ("data.source=3", "data.source = 3: must be a text"),
    ("train.learning_rate=nan", "must be a finite number"),
    ("cluster.cut=0,2", "cluster.cut = '0,2': must be a list"),
    ('cluster.cut=["a"]', "cluster.cut[0] = 'a': must be a whole number"),
    ("chaos.kill=[1]", "chaos.kill[0] = 1: must be a table"),
    ("chaos.kill=[{stage=1}]", "chaos.kill[0] = {'stage': 1}: lacks step"),
    ("chaos.kill=[{step=1,stage=1,faze=1}]", "chaos.kill[0].faze = 1: is unknown"),
    ("train.steps=0", "--set: train.steps = 0: is out of range; give a number at least 1"),
    ("model.dropout=1", "model.dropout = 1.0: is out of range; give a number at least 0 and below"),
    ("chaos.notice_share=1.5", "give a number at least 0 and at most 1"),
    ("train.learning_rate=0", "give a number above 0"),
    ("cluster.virtual_forward_ms=[-1]", "is out of range"),
    ("train.batch=7", "train.batch = 7: is no multiple of train.microbatch x virtual nodes"),
    ("train.virtual_nodes=3", "train.batch = 8: is no multiple"),
    ("train.virtual_nodes=8", "take 16"),
    ("model.heads=3", "model.heads = 3: does not divide model.width = 16"),
    ("cluster.stages=5", "cluster.stages = 5: is more than the model's 4 layers"),
    ("cluster.stages=0", "cluster.stages = 0: is out of range"),
    ("cluster.cut=[0]", "names 1 first layers for 2 stages"),
    ("cluster.cut=[1,2]", "does not grow from 0"),
    ("cluster.cut=[0,0]", "does not grow from 0"),
    ("cluster.cut=[0,4]", "goes past the last layer 3"),
    ("cluster.virtual_forward_ms=[1,2,3]", "gives 3 figures for 2 stages"),
    ("cluster.redundancy=always", "take one of off, stash, gap, eager, full, peer; or for each"),
    ("cluster.redundancy=stash,off,stash,stash", "no blank, or auto"),
    ("cluster.redundancy=stash, full, gap, gap", "no blank, or auto"),
    ("cluster.redundancy=stash,gap,full", "names 3 modes for 2 stages; give one for all, or 2"),
    ("cluster.device=tpu", "take one of auto, cpu, virtual, cuda, lagging"),
    ("cluster.transport=udp", "take one of ipc, tcp"),
    ("train.precision=fp16", "take one of fp32"),
    *(
        (f"checkpoint.url={url}", "is neither a directory nor a bucket; give a directory, or s3://")
        for url in ("s3://", "s3:/b/p", "s3:///p", "s3://b", "s3://b//p", "http://x", "file:///x")
    ),
    ('checkpoint.url=" x"', "has blanks around it or odd characters; remove them"),
    ('checkpoint.url="x\\u0000y"', "has blanks around it or odd characters; remove them"),
    ("cluster.suspect_s=0.1", "is not longer than cluster.beat_ms = 200"),
    ("cluster.gone_s=0.5", "is shorter than cluster.suspect_s"),
    ("cluster.stages=1000000000000", "give a number at least 1 and at most 1,024"),
    ("cluster.pipelines=1000000000000", "at most 1,024"),
    ("cluster.threads=100000", "at most 1,024"),
    ("train.seed=1" + "0" * 23, "at least 0 and at most 9,007,199,254,740,992"),
    ("chaos.seed=1" + "0" * 23, "at least 0 and at most 9,007,199,254,740,992"),
    ("train.warmup_steps=1" + "0" * 20, "at least 0 and at most 1,000,000,000"),
    ("checkpoint.every_steps=1" + "0" * 23, "at least 0 and at most 1,000,000,000"),
    ("checkpoint.keep_hours=1e308", "at least 0 and at most 87,600"),
    ("budget.max_hours=1e308", "at least 0 and at most 87,600"),
    ("budget.max_usd=1e308", "at least 0 and at most 1,000,000,000,000"),
    ("data.max_bytes=1" + "0" * 30, "at most 1,000,000,000,000"),
    ("train.steps=1" + "0" * 5000, "--set train.steps: cannot be read: Exceeds the limit"),
    ("train.batch=2000000000", "train.batch = 2000000000: is out of range"),
    (
        "train.batch=1000000",
        "makes 1,000,000 forwards a step over 2 stages; take a larger train.mi",
    ),
    ("cluster.gone_s=1e300", "at most 86,400"),
    ("cluster.virtual_link_latency_ms=1e300", "at most 3,600,000"),
    ("chaos.kills_per_hour=1e300", "at most 36,000"),
    ("chaos.notice_s=1e300", "at most 86,400"),
    ("chaos.kill=[{step=1,stage=1,notice_s=1e300}]", "give 0 (no notice) to 86,400"),
    ("model.width=" + "[" * 5000, "--set model.width: cannot be read"),
    ("train.steps=1\ntrain.seed=2", "is more than one value; write a --set for each"),
    ("cloud.region=nowhere", "names no region; name one, such as us-east-1"),
    ('cloud.zones=["mars-1a"]', "are not all in cloud.region = 'us-east-1'"),
    ("data.path=nowhere", "there is no file or folder"),
    ("data.path=", "names no file or folder"),
    ("data.source=python-stdlib", "data.path = 'text.txt': is not read from python-stdlib"),
    ("data.source=web", "take one of python-stdlib, path"),
    ("model.model=bert", 'write "gpt", "hf:FOLDER" or "file.py:build"'),
    ("model.model=mine.py:build", "there is no file"),
    ("cloud.zones=[]", "cloud.zones = []: names nothing"),
    ("cloud.provider=gcp", "take one of local, ec2"),
    (
        "chaos.kill=[{step=6,stage=0}]",
        "chaos.kill[0].step = 6: is not in this job; give 0 to 5, or no",
    ),
    ("chaos.kill=[{step=1,stage=2}]", "chaos.kill[0].stage = 2"),
    ("chaos.kill=[{step=1,stage=1,pipeline=1}]", "chaos.kill[0].pipeline = 1"),
    ("chaos.kill=[{step=1,stage=1,microbatch=4}]", "chaos.kill[0].microbatch = 4"),
    ('chaos.kill=[{step=1,stage=1,phase="sleep"}]', "take one of forward, backward"),
    ("chaos.kill=[{step=1,stage=1,notice_s=-1}]", "chaos.kill[0].notice_s = -1.0"),
    ("budget.max_usd=-1", "budget.max_usd = -1.0: is out of range"),
    ("cluster.spread=wide", "take one of auto, one, pipelines, neighbours"),
    ("cluster.spread=pipelines", "needs two pipelines, and there is 1; raise cluster.max_pi"),
    ("nonsense", "--set 'nonsense': is no override; write --set section.key=value"),
    ("steps=3", "is no override; write --set section.key=value, such as train.steps=..."),
    ("file=x", "is no override"),
]


@pytest.mark.parametrize(("override", "message"), REFUSED, ids=[o[:50] for o, _ in REFUSED])
def test_refusals_are_one_line_and_say_what(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        tiny_job(tmp_path, [override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


NO_REPLICA = (
    "needs two stages: with one, every peer already holds the exact state; "
    "take off, or peer with two pipelines or more, or auto"
)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        *((f"cluster.redundancy={mode}", NO_REPLICA) for mode in REPLICA_MODES),
        ("cluster.redundancy=stash,full", NO_REPLICA),
        ("cluster.redundancy=peer", "needs a second pipeline: with one stage and one pipeline, no"),
        ("cluster.spread=neighbours", "needs two stages: a pipeline of one has no neighbours"),
        ("cluster.spread=pipelines", 'raise cluster.max_pipelines, or take "one"'),
        ("cluster.cut=[0,2]", "names 2 first layers for 1 stages"),
        (
            "chaos.kill=[{step=1,stage=1}]",
            "chaos.kill[0].stage = 1: is not in this job; give 0 to 0",
        ),
        ('chaos.kill=[{step=1,stage=0,phase="ship"}]', "nothing is shipped without shadows"),
    ],
)
def test_what_one_stage_cannot_have_is_refused(tmp_path: Path, override: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        tiny_job(tmp_path, ["cluster.redundancy=off", "cluster.stages=1", override])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "overrides",
    [
        ["cluster.redundancy=off"],
        ["cluster.redundancy=auto"],
        ["cluster.redundancy=peer", "cluster.pipelines=2"],
        ["cluster.redundancy=peer", "cluster.max_pipelines=2"],
        ["cluster.redundancy=auto", "cluster.pipelines=2", "cluster.spread=pipelines"],
    ],
)
def test_one_stage_is_plain_data_parallelism(tmp_path: Path, overrides: list[str]) -> None:
    assert tiny_job(tmp_path, ["cluster.stages=1", *overrides]).cluster.stages == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[train]\nsteps = \n", "is not valid TOML"),
        ("[train]\nstepz = 3\n", "train.stepz = 3: is unknown; did you mean 'steps'?"),
        ("train = 3\n", "train = 3: is a section, not a value"),
        ("[train]\nstepz = 3\n[modle]\n[train.x]\n", "[modle]: is unknown; did you mean 'model'?"),
        ("[train]\n" + "".join(f"q{n} = 1\n" for n in range(7)), "; and 2 more"),
        ("file = 'x'\n", "file = 'x': is unknown"),
        ("[train]\nbatch = 15\n", "train.batch = 15"),
        ("[train]\nsteps = 1" + "0" * 5000 + "\n", "is not valid TOML: Exceeds the limit"),
        ("[train]\nsteps = " + "[" * 5000 + "\n", "is not valid TOML"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        load_job(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


def test_all_overrides_that_are_wrong_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        tiny_job(tmp_path, ["train.stps=3", "train.seed=4", "trian.steps=3", "train.lr=x"])
    assert str(caught.value).startswith(
        "--set: train.stps = 3: is unknown; did you mean 'steps'? "
        "--set: [trian]: is unknown; did you mean 'train'? --set: train.lr = 'x': is unknown;"
    )
    assert "\n" not in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.toml: No such file"):
        load_job(tmp_path / "none.toml")
    with pytest.raises(InputError, match="Is a directory"):
        load_job(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b"# \xff\n")
    with pytest.raises(InputError, match="is not valid TOML"):
        load_job(tmp_path / "latin.toml")


def test_the_mark_that_some_editors_begin_a_file_with_is_no_fault(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text("[train]\nsteps = 7\n", encoding="utf-8-sig")
    assert load_job(file).train.steps == 7


def test_defaults_overrides_and_resolution(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, ["cluster.pipelines=3", "train.steps=9", "train.learning_rate=1"])
    assert (job.train.steps, job.train.learning_rate) == (9, 1.0)
    assert job.train.virtual_nodes == 4
    assert job.cluster.virtual_forward_ms == (20.0,)
    assert job.file == str(tmp_path / "job.toml")
    assert resolve(job) == job
    kills = tiny_job(tmp_path, ["chaos.kill=[{step=1,stage=1,notice_s=5}]"]).chaos.kill
    assert kills == (Kill(step=1, stage=1, notice_s=5.0),)


def test_the_later_override_wins_and_text_needs_no_quotes(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, ["cluster.redundancy=off", 'cluster.redundancy="full"'])
    assert job.cluster.redundancy == "full"
    assert tiny_job(tmp_path).cluster.redundancy == "auto"
    each = "stash,full"
    assert tiny_job(tmp_path, [f"cluster.redundancy={each}"]).cluster.redundancy == each
    assert tiny_job(tmp_path, ["cluster.redundancy=auto"]).cluster.redundancy == "auto"


def test_a_stored_job_fits_another_grid(tmp_path: Path) -> None:
    """What a resume does: a default, or one figure for all, was never a figure for each stage."""
    stored = job_from_json(job_to_json(tiny_job(tmp_path, ["train.virtual_nodes=2"])))
    other = job_with(stored, ["cluster.stages=3", "cluster.pipelines=2"])
    assert (other.cluster.stages, other.cluster.max_pipelines) == (3, 2)
    each = tiny_job(tmp_path, ["cluster.virtual_forward_ms=[1,2]"])
    with pytest.raises(InputError, match="gives 2 figures for 3 stages"):
        job_with(job_from_json(job_to_json(each)), ["cluster.stages=3"])


def test_nothing_is_shipped_without_redundancy(tmp_path: Path) -> None:
    kill = 'chaos.kill=[{step=1,stage=1,phase="ship"}]'
    assert tiny_job(tmp_path, [kill]).chaos.kill
    with pytest.raises(InputError, match="nothing is shipped"):
        tiny_job(tmp_path, [kill, "cluster.redundancy=off"])


def test_json_round_trip(tmp_path: Path) -> None:
    job = tiny_job(tmp_path, ["chaos.kill=[{step=1,stage=1}]", "cluster.cut=[0,2]"])
    assert job_from_json(job_to_json(job)) == job


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw | {"schema_version": 2}, "another schema"),
        (lambda raw: {"schema_version": 1}, "holds no job"),
        (lambda raw: raw | {"job": raw["job"] | {"wings": {}}}, "wings"),
        (lambda raw: [raw], "another schema"),
    ],
)
def test_json_of_something_else_is_refused(tmp_path, change, message) -> None:  # type: ignore[no-untyped-def]
    raw = json.loads(job_to_json(tiny_job(tmp_path)))
    with pytest.raises(InputError, match=message):
        job_from_json(json.dumps(change(raw)))


def test_no_json_is_refused() -> None:
    with pytest.raises(InputError, match="is not JSON"):
        job_from_json("{")


def test_semantics_follow_the_numbers_and_nothing_else(tmp_path: Path) -> None:
    def hash_of(*overrides: str, digest: str = "d") -> str:
        job = tiny_job(tmp_path, overrides)
        return semantics(job, data_digest=digest).hash()

    base = hash_of()
    assert base == hash_of("cluster.stages=3", "cluster.redundancy=eager", "budget.max_usd=1")
    assert base == hash_of("cluster.device=virtual", "chaos.kill=[{step=1,stage=1}]")
    for change in ("train.seed=2", "train.virtual_nodes=2", "train.beta2=0.9", "model.tied=true"):
        assert hash_of(change) != base, change
    assert hash_of(digest="e") != base


def test_a_users_model_counts_by_its_content(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("a = 1\n", encoding="utf-8")
    job = tiny_job(tmp_path, ["model.model=mine.py:build"])

    def hash_of(digest: str, file: Path = tmp_path) -> str:
        code = {"files": {"0/mine.py": digest}, "requires": {}}
        moved = replace(job, file=str(file / "job.toml"))
        return semantics(moved, data_digest="d", code=code).hash()

    assert hash_of("1") != hash_of("2")
    assert hash_of("1") == hash_of("1", tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="means nothing without what it names"):
        semantics(job, data_digest="d")


def test_what_a_job_names_is_needed_to_train_it_and_not_to_read_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("a = 1\n", encoding="utf-8")
    job = tiny_job(tmp_path, ["model.model=mine.py:build"])
    (tmp_path / "mine.py").unlink()
    (tmp_path / "text.txt").unlink()
    assert job_from_json(job_to_json(job)) == job
    with pytest.raises(InputError, match="there is no file"):
        load_job(job.file)


def test_the_reference_lists_every_key_with_its_default() -> None:
    import tomllib

    tables = tomllib.loads((EXAMPLES / "reference.toml").read_text(encoding="utf-8"))
    for name, section in sections().items():
        assert list(tables[name]) == [f.name for f in fields(section)], name
    assert set(tables) == set(sections())
    job = load_job(EXAMPLES / "reference.toml")
    assert replace(job, file="") == resolve(JobConfig())


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda p: p.name)
def test_every_example_is_a_job(path: Path) -> None:
    # The data of this one are written first, by a program that the example names.
    elsewhere = ["data.path=."] if path.name == "stdlib_files.toml" else []
    assert load_job(path, elsewhere, prepared=False).file == str(path.resolve())


def test_a_spread_over_zones_needs_two(tmp_path: Path) -> None:
    apart = ["cluster.spread=neighbours"]
    assert tiny_job(tmp_path, apart).cluster.spread == "neighbours"
    with pytest.raises(InputError, match="needs two zones, and cloud"):
        tiny_job(tmp_path, [*apart, 'cloud.zones=["us-east-1a"]'])
    two = ["cluster.spread=pipelines", "cluster.pipelines=1", "cluster.max_pipelines=2"]
    assert tiny_job(tmp_path, two).cluster.spread == "pipelines"


def test_the_policy_has_the_spread_of_the_job_or_of_the_plan(tmp_path: Path) -> None:
    cuts = ((0, 2, 4),)
    free = tiny_job(tmp_path, [])
    assert policy_of(free, cuts).spread == "one"
    assert policy_of(free, cuts, spread="neighbours").apart
    fixed = tiny_job(tmp_path, ["cluster.spread=neighbours"])
    assert policy_of(fixed, cuts).spread == "neighbours"


@pytest.mark.parametrize(
    "text", ["[" * 5000, '{"schema_version": 1, "job": ' + "[" * 5000, "9" * 5000]
)
def test_a_resolved_job_that_is_no_json_is_named(text: str) -> None:
    with pytest.raises(InputError, match="resolved job: is not JSON"):
        job_from_json(text)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[data]\nsource = "path"\npath = "{}"', "data.path"),
        ('[model]\nmodel = "{}.py:build"', "model.model"),
    ],
)
@pytest.mark.parametrize("name", ["x" * 5000, r"a\u0000b", "x/" * 3000])
def test_a_path_that_can_be_none_is_one_line(
    tmp_path: Path, text: str, key: str, name: str
) -> None:
    path = tmp_path / "job.toml"
    path.write_text(text.replace("{}", name))
    with pytest.raises(InputError, match=f"{key} = .*there is no file"):
        load_job(path)


@pytest.mark.parametrize("digits", [400, 4000, 5000])
def test_a_whole_number_beyond_every_float_is_one_line(tmp_path: Path, digits: int) -> None:
    path = tmp_path / "job.toml"
    for sign in ("", "-"):
        path.write_text(f"[train]\nlearning_rate = {sign}{'9' * digits}\n")
        with pytest.raises(InputError) as caught:
            load_job(path)
        assert len(str(caught.value)) < 600


def test_a_missing_file_of_data_of_the_users_own_is_not_said_to_be_text(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("")
    path = tmp_path / "job.toml"
    path.write_text('[data]\nsource = "mine.py:data"\npath = "nowhere"\n')
    with pytest.raises(InputError, match="correct the path, or make first what your data function"):
        check_inputs(load_job(path))
