"""A check on a rented machine: what is refused before anything is made for it, what it is said to
cost, and how each of its ends leaves the account."""

import hashlib
import json
import os
import signal
import time
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch

from bamboo import wiring
from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.final import write_manifest, write_stage
from bamboo.config.load import job_to_json
from bamboo.config.resolve import semantics
from bamboo.doctor.orphans import known_runs
from bamboo.errors import BambooError, BooksUnwritable, InputError, StorageUnavailable
from bamboo.ids import InstanceId, RunId, ZoneId, run_id
from bamboo.runs import lock, run_folder
from bamboo.runs.removing import why_not
from bamboo.runs.run_folder import CHECKS, RunFolder, job_of
from bamboo.sites.account import ending, rented_check
from bamboo.sites.account.account_ready import BOOT_FILES
from bamboo.sites.account.rented_check import check_rented
from bamboo.telemetry.records import MetricRecord
from bamboo.topology.grid import Grid
from bamboo.topology.strategy import Placement, Strategy
from cloud import fleet
from cloud.fake import FakeProvider, ScriptedRefusal
from cloud.log_records import start_record
from cloud.orphans import Known
from cloud.provider import (
    CloudRefused,
    CloudUnavailable,
    LaunchAnswer,
    LaunchSpec,
    Market,
    Offer,
    Pool,
    RefusalKind,
)
from tests.attested import write_attested
from tests.jobs import TEXT, tiny_job

IN_ACCOUNT = (
    *("cloud.provider=ec2", "cloud.bucket=bucket", "cloud.region=us-east-1"),
    *('cloud.zones=["us-east-1a"]', 'cloud.instance_types=["g4dn.2xlarge", "g4dn.xlarge"]'),
    *('cluster.device="cpu"', "cluster.allow_idle_gpu=true"),
)
STEP_S = 90.0


def offer(market: Market, usd_per_hour: float) -> Offer:
    pool = Pool(instance_type="g4dn.xlarge", zone=ZoneId("us-east-1a"), market=market)
    return Offer(pool=pool, usd_per_hour=usd_per_hour)


class Cloud(FakeProvider):
    """An account. `machine` is what its next instance does when it is there."""

    machine: Callable[[InstanceId], None] = staticmethod(lambda instance: None)

    def launch(self, specs: Sequence[LaunchSpec]) -> LaunchAnswer:
        answer = super().launch(specs)
        for one in answer.launched:
            self.machine(one.instance)
        return answer


class Secrets:
    """Those of a stack, of which a check has none."""

    def delete(self, run: RunId) -> None:
        """Does nothing."""


@pytest.fixture
def cloud() -> Cloud:
    return Cloud(
        listed=(offer(Market.SPOT, 0.2), offer(Market.ON_DEMAND, 0.5)), now_s=time.time() - 600.0
    )


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DirectoryStore:
    def opened(url: str, *, region: str = "") -> DirectoryStore:
        return DirectoryStore(tmp_path / url.removeprefix("s3://"))

    monkeypatch.setattr(wiring, "bucket", opened)
    whole = opened("s3://bucket")
    for name in BOOT_FILES:
        whole.put_new(f"boot/{name}", b"-")
    return whole


@pytest.fixture
def folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: Cloud, bucket: DirectoryStore
) -> RunFolder:
    """A run of an account that has ended after six steps."""
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    monkeypatch.setenv("BAMBOO_CONFIG", str(tmp_path / "cloud.toml"))

    class Connected:
        @staticmethod
        def connect(**asked: Any) -> Cloud:
            assert asked["markets"] == {Market.SPOT, Market.ON_DEMAND}
            assert asked["instance_types"] == ("g4dn.xlarge",), "the one that the run had"
            return cloud

    monkeypatch.setattr(rented_check, "Ec2Provider", Connected)
    monkeypatch.setattr(rented_check, "LOOK_S", 0.0)
    monkeypatch.setattr(rented_check, "make_role", lambda job, check: None)
    for module in (rented_check, ending):
        monkeypatch.setattr(module, "remove_role", lambda job, check: None)
    monkeypatch.setattr(wiring, "run_secrets", lambda region, stack: Secrets())
    return ended(tmp_path, IN_ACCOUNT)


def ended(tmp_path: Path, overrides: tuple[str, ...]) -> RunFolder:
    job = tiny_job(tmp_path, overrides)
    folder = run_folder.create(tmp_path / "runs", run_id("run"))
    strategy = Strategy(
        semantics=semantics(job, data_digest=hashlib.sha256(TEXT.encode()).hexdigest()),
        placement=Placement(cut=(0, 2, 4), grid=Grid(pipelines=1, stages=2), redundancy="stash"),
    )
    folder.strategy.write_text(strategy.to_json())
    folder.resolved.write_text(job_to_json(job))
    write_attested(folder.path, job)
    rented = start_record(InstanceId("i-1"), offer(Market.SPOT, 0.2).pool, at_s=0, usd_per_hour=0.2)
    folder.cloud.write_text(json.dumps(rented) + "\n")
    records = [
        MetricRecord(
            step=n, loss=1.0, tokens_per_s=1.0, usd=0.0, tokens_per_usd=1.0, at_s=n * STEP_S
        )
        for n in range(6)
    ]
    folder.metrics.write_text("".join(one.to_json() + "\n" for one in records))
    write_stage(folder.final, 0, {"param/0.w": torch.zeros(3)}, 6)
    write_manifest(folder.final, stages=1, step=6)
    return folder


def refused(folder: RunFolder) -> str:
    def agree(question: str) -> bool:
        raise AssertionError("it is refused before anybody is asked")

    with pytest.raises(InputError) as error:
        check_rented(folder, agree=agree, note=lambda line: None, told=lambda step, steps: None)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_price_is_said_before_anything_is_made(folder: RunFolder, tmp_path: Path) -> None:
    said: list[str] = []

    def no(question: str) -> bool:
        said.append(question)
        return False

    before = set(tmp_path.rglob("*"))
    assert check_rented(folder, agree=no, note=said.append, told=lambda *at: None) is None
    assert set(tmp_path.rglob("*")) == before
    first, pools, about, most, question = said
    assert first.startswith("run-check-")
    assert pools == (
        "  spot g4dn.xlarge in us-east-1a at $0.2000/h, or where that has no capacity up to "
        "on-demand g4dn.xlarge in us-east-1a at $0.5000/h"
    )
    # two stages, one after the other: 6 steps of 180 s, and 10 minutes to boot
    assert "for 28 min 00 s (modelled): 10 min 00 s to boot, 6 steps of 3 min 00 s" in about
    assert "after 1 h 21 min the machine ends itself" in most
    cost = [float(line.partition("$")[2].partition(" ")[0].rstrip(":")) for line in (about, most)]
    assert 0.2 * 1680 / 3600 < cost[0] < 0.2 * 1680 / 3600 + 0.02, "with disk and address"
    assert 0.5 * 5160 / 3600 < cost[1] < 0.5 * 5160 / 3600 + 0.06
    assert question == "Rent it?"


@pytest.mark.parametrize(("planned", "takes"), [(42.0, "1 min 24 s"), (None, "2.0 s")])
def test_a_run_of_one_step_is_priced_by_its_plan(
    folder: RunFolder, planned: float | None, takes: str
) -> None:
    folder.metrics.write_text(folder.metrics.read_text().partition("\n")[0] + "\n")
    resolved = json.loads(folder.resolved.read_text()) | {"planned": {"step_s": planned}}
    folder.resolved.write_text(json.dumps(resolved))
    said: list[str] = []
    check_rented(folder, agree=lambda _: False, note=said.append, told=lambda *at: None)
    assert said[2].endswith(f"6 steps of {takes}")


def test_a_run_of_this_machine_has_nothing_to_rent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    assert "--rent: run run was trained on this machine" in refused(ended(tmp_path, ()))


def other_data(folder: RunFolder) -> None:
    (folder.path.parents[1] / "text.txt").write_text(TEXT + "one more line")


def nobody_attested(folder: RunFolder) -> None:
    (folder.path / "numerics.json").unlink()


def too_large(folder: RunFolder) -> None:
    os.truncate(folder.final / "stage-00.safetensors", 12 << 30)


def steps_of_an_hour(folder: RunFolder) -> None:
    lines = map(json.loads, folder.metrics.read_text().splitlines())
    rows = (json.dumps(one | {"t": 1800.0 * one["step"]}) + "\n" for one in lines)
    folder.metrics.write_text("".join(rows))


def an_older_stack(folder: RunFolder) -> None:
    (folder.path.parents[1] / "bucket" / "boot" / BOOT_FILES[0]).unlink()


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (other_data, "this machine cannot repeat the bits of the run: data_digest is"),
        (nobody_attested, "numerics.json: is missing, so nobody knows what the run computed with"),
        (too_large, "one machine has to hold the whole model, 20.0 GiB and its activations, and "),
        (
            steps_of_an_hour,
            "one machine takes about 1 h 00 min for a step (modelled), and it would",
        ),
        (an_older_stack, f"lacks {BOOT_FILES[0]} in boot/; `bamboo init --apply` brings"),
    ],
)
def test_what_cannot_be_checked_is_refused_before_it_costs(
    folder: RunFolder, spoil: Callable[[RunFolder], None], says: str
) -> None:
    spoil(folder)
    assert says in refused(folder)


def test_where_nothing_has_a_price_nothing_is_rented(folder: RunFolder, cloud: Cloud) -> None:
    cloud.listed = ()
    assert "--rent: no pool of us-east-1a has a price; ask later" in refused(folder)


def rented(folder: RunFolder, notes: list[str]) -> dict[str, Any]:
    found = check_rented(
        folder, agree=lambda question: True, note=notes.append, told=lambda step, steps: None
    )
    assert found is not None
    return found


def check_of(folder: RunFolder) -> Path:
    (kept,) = (folder.path / CHECKS).iterdir()
    return kept


def result_of(folder: RunFolder) -> Any:
    return json.loads((check_of(folder) / "result.json").read_text())


def stop(folder: RunFolder) -> None:
    """What `bamboo stop ID` does once nothing of the check lives."""
    ending._take_back(RunId(check_of(folder).name), "us-east-1", job_of(folder))


def verdict_in(bucket: DirectoryStore, body: bytes = b'{"body": {"equal": true}}') -> Any:
    """A machine that stores this verdict, and a log, once it has what it begins with."""

    def machine(instance: InstanceId) -> None:
        (env,) = (name for name in bucket.sizes("starts/") if name.endswith("agent.env"))
        check = env.split("/")[1]
        told = bucket.get(env)
        assert told is not None
        assert b"BAMBOO_REDIS_URL" not in told, "it needs no store"
        bucket.put_new(f"runs/{check}/logs/{instance}/20261127T000000-1-b.log", b"a line\n")
        bucket.put_new(f"runs/{check}/verdict.json", body)

    return machine


def nothing_is_left(cloud: Cloud, bucket: DirectoryStore) -> None:
    assert cloud.held(None) == ()
    assert {name.split("/")[0] for name in bucket.sizes("")} <= {"boot", "wheels"}


def test_without_spot_capacity_it_is_rented_on_demand(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore
) -> None:
    cloud.script = [ScriptedRefusal(kind=RefusalKind.POOL_OUT, code="InsufficientCapacity")]
    cloud.machine = verdict_in(bucket)
    notes: list[str] = []
    body = rented(folder, notes)
    (line,) = body["rented"]["instances"]
    assert (body["equal"], line["market"], line["usd_per_hour"]) == (True, "on-demand", 0.526)
    assert body["rented"]["whole_usd"] == pytest.approx(
        line["usd"] + body["rented"]["beside"]["usd"]
    )
    assert any("InsufficientCapacity" in note for note in notes)
    nothing_is_left(cloud, bucket)
    assert result_of(folder)["equal"] is True


def test_a_machine_that_ends_leaves_its_log(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore
) -> None:
    def ends(instance: InstanceId) -> None:
        verdict_in(bucket)(instance)
        for name in bucket.sizes("runs/"):
            if name.endswith("verdict.json"):
                bucket.delete(name)
        cloud.terminate([instance])

    cloud.machine = ends
    with pytest.raises(BambooError, match="ended without a verdict; its log is in"):
        rented(folder, [])
    assert [path.read_text() for path in check_of(folder).glob("logs/*/*.log")] == ["a line\n"]
    nothing_is_left(cloud, bucket)


def test_what_cannot_be_given_back_is_named_with_what_ends_it(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(instances: Sequence[InstanceId]) -> tuple[InstanceId, ...]:
        raise CloudUnavailable("no answer")

    cloud.machine = verdict_in(bucket)
    monkeypatch.setattr(cloud, "terminate", refuses)
    monkeypatch.setattr(rented_check, "TERMINATE_DEADLINE_S", 0.0)
    said = r"may still be running .*`bamboo stop (run-check-\w+) --region us-east-1` ends what is"
    with pytest.raises(BambooError, match=said):
        rented(folder, [])
    assert result_of(folder)["equal"] is True
    assert bucket.sizes(f"runs/{check_of(folder).name}/"), "the machine may still write there"
    stop(folder)
    assert {name.split("/")[0] for name in bucket.sizes("")} <= {"boot", "wheels"}


def test_a_bucket_that_keeps_a_verdict_is_asked_again_by_stop(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    delete = DirectoryStore.delete

    def refuses(store: DirectoryStore, name: str) -> None:
        if name == "verdict.json":
            raise StorageUnavailable(f"{name}: SlowDown")
        delete(store, name)

    cloud.machine = verdict_in(bucket)
    with monkeypatch.context() as patch:
        patch.setattr(DirectoryStore, "delete", refuses)
        with pytest.raises(BambooError, match=r"verdict\.json: SlowDown; `bamboo stop run-check-"):
            rented(folder, [])
    stop(folder)
    nothing_is_left(cloud, bucket)


def test_ctrl_c_does_not_break_into_giving_back(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminate = cloud.terminate

    def interrupted(instances: Sequence[InstanceId]) -> tuple[InstanceId, ...]:
        signal.raise_signal(signal.SIGINT)
        return terminate(instances)

    cloud.machine = verdict_in(bucket)
    monkeypatch.setattr(cloud, "terminate", interrupted)
    assert rented(folder, [])["equal"] is True
    nothing_is_left(cloud, bucket)


@pytest.mark.parametrize(
    "attack",
    [
        *product(("role", "files", "rented", "waiting"), [signal.SIGINT]),
        *product(("files", "waiting"), [signal.SIGTERM, signal.SIGHUP]),
    ],
)
def test_a_signal_at_any_moment_leaves_nothing_and_the_second_try_works(
    folder: RunFolder,
    cloud: Cloud,
    bucket: DirectoryStore,
    monkeypatch: pytest.MonkeyPatch,
    attack: tuple[str, signal.Signals],
) -> None:
    moment, number = attack
    came: list[str] = []

    def at(here: str) -> None:
        if here == moment and not came:
            came.append(here)
            signal.raise_signal(number)

    put_settings = rented_check.put_settings

    def put(objects: Any, settings: Any) -> None:
        at("files")
        put_settings(objects, settings)

    monkeypatch.setattr(rented_check, "make_role", lambda job, check: at("role"))
    monkeypatch.setattr(rented_check, "put_settings", put)
    monkeypatch.setattr(rented_check.time, "sleep", lambda duration_s: at("waiting"))
    cloud.machine = lambda instance: at("rented")
    with pytest.raises(KeyboardInterrupt):
        rented(folder, [])
    nothing_is_left(cloud, bucket)
    assert list(known_runs().checks.values()) == [False]
    cloud.machine = verdict_in(bucket)
    assert rented(folder, [])["equal"] is True
    nothing_is_left(cloud, bucket)


def test_a_check_that_goes_on_is_no_orphan_and_its_run_is_not_removed(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore
) -> None:
    known: list[Known] = []
    kept_because: list[str] = []

    def machine(instance: InstanceId) -> None:
        known.append(known_runs())
        kept_because.append(why_not(folder))
        verdict_in(bucket)(instance)

    cloud.machine = machine
    assert rented(folder, [])["equal"] is True
    check = check_of(folder).name
    known.append(known_runs())
    (folder.path / CHECKS / "a copy of mine").mkdir()
    assert set(known_runs().checks) == {check, "a copy of mine"}, "not one of our names"
    of_another_user = folder.path / CHECKS / check / lock.NAME
    of_another_user.unlink()
    of_another_user.symlink_to(folder.resolved)  # which cannot be opened either
    assert known_runs().checks[RunId(check)] is True, "nobody knows, so it may go on"
    assert [one.checks for one in known] == [{check: True}, {check: False}]
    assert kept_because == [f"its check {check} goes on; wait for it, or interrupt it"]


def test_a_bucket_that_cannot_be_read_is_found_before_anything_is_rented(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DirectoryStore, "get", refusing)
    with pytest.raises(StorageUnavailable, match="AccessDenied"):
        rented(folder, [])
    assert [name for name, _ in cloud.calls if name == "launch"] == []
    nothing_is_left(cloud, bucket)


def test_a_wait_for_a_bucket_ends_some_time_after_its_machine(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ends(instance: InstanceId) -> None:
        cloud.terminate([instance])
        monkeypatch.setattr(DirectoryStore, "get", refusing)

    cloud.machine = ends
    monkeypatch.setattr(rented_check, "READ_AGAIN_S", 0.0)
    with pytest.raises(BambooError, match="is gone, and the bucket cannot be read, so nothing is"):
        rented(folder, [])
    nothing_is_left(cloud, bucket)


def refusing(*arguments: object) -> None:
    raise StorageUnavailable("AccessDenied; see that these credentials may use it")


def test_a_full_disk_does_not_lose_a_verdict_that_was_paid_for(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, body: object) -> None:
        raise BooksUnwritable(f"cannot write {path}: No space left on device")

    cloud.machine = verdict_in(bucket)
    monkeypatch.setattr(rented_check, "write_json", full)
    notes: list[str] = []
    assert rented(folder, notes)["equal"] is True
    assert any("No space left on device; the verdict is said all the same" in n for n in notes)
    nothing_is_left(cloud, bucket)


def test_a_wait_for_capacity_has_an_end(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud.script = [ScriptedRefusal(kind=RefusalKind.POOL_OUT, code="Out")] * 2
    monkeypatch.setattr(rented_check, "CAPACITY_S", -1.0)
    notes: list[str] = []
    with pytest.raises(BambooError, match="no machine was there to rent in"):
        rented(folder, notes)
    assert "no machine was rented, and nothing is to be paid" in notes[-1]
    nothing_is_left(cloud, bucket)


class Clock:
    """Passes a minute at each sleep."""

    def __init__(self) -> None:
        self.now_s = time.time()

    def time(self) -> float:
        return self.now_s

    def sleep(self, _: float) -> None:
        self.now_s += 60.0


def test_a_wait_for_capacity_is_none_of_the_machines_time(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    began_s, listed = clock.now_s, cloud.listed
    monkeypatch.setattr(rented_check, "time", clock)
    monkeypatch.setattr(fleet, "OFFERS_S", 0.0)
    found: list[float] = []

    def offers() -> tuple[Offer, ...]:
        return () if clock.now_s < began_s + 600.0 else listed

    def machine(instance: InstanceId) -> None:
        found.extend(one.expires_at_s or 0.0 for one in cloud.held(None))
        verdict_in(bucket)(instance)

    def agree(question: str) -> bool:
        monkeypatch.setattr(cloud, "offers", offers)
        return True

    cloud.machine = machine
    assert check_rented(folder, agree=agree, note=lambda line: None, told=lambda *at: None)
    assert found == [int(began_s + 600.0 + 4860.0)], "all that the price is for"


def test_a_machine_that_was_rented_unheard_has_no_more_time(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    tag_s = int(clock.now_s + 4860.0)
    monkeypatch.setattr(rented_check, "time", clock)
    cloud.loses_answers = 1
    notes: list[str] = []
    with pytest.raises(BambooError, match="the machine had no verdict within 1 h 21 min"):
        rented(folder, notes)
    assert any("the answer was lost" in note for note in notes)
    assert clock.now_s <= tag_s + 120.0
    assert not [call for call in cloud.calls if call[0] == "prolong"]
    nothing_is_left(cloud, bucket)


def test_a_wait_for_a_verdict_has_an_end(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rented_check, "NEVER_BEGAN_S", -1e6)
    notes: list[str] = []
    with pytest.raises(BambooError, match="the machine had no verdict within"):
        rented(folder, notes)
    assert "with disk and address (modelled) $" in notes[-1]
    nothing_is_left(cloud, bucket)


def test_the_first_error_is_the_one_that_is_reported(
    folder: RunFolder, cloud: Cloud, bucket: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_right(job: object, check: RunId) -> None:
        raise CloudRefused("CreateRole: AccessDenied")

    def left(job: object, check: RunId) -> None:
        raise BambooError("the role may be there still")

    monkeypatch.setattr(rented_check, "make_role", no_right)
    monkeypatch.setattr(rented_check, "remove_role", left)
    notes: list[str] = []
    with pytest.raises(CloudRefused, match="CreateRole"):
        rented(folder, notes)
    assert any("the role may be there still; `bamboo stop run-check-" in note for note in notes)
    nothing_is_left(cloud, bucket)


@pytest.mark.parametrize(
    ("verdict", "kind", "says"),
    [
        (b'{"error": "no GPU", "exit_code": 2}', InputError, "on the rented machine: no GPU"),
        (b'{"error": "it broke", "exit_code": 1}', BambooError, "on the rented machine: it broke"),
        (b'{"body": {"equal": "yes"}}', BambooError, "verdict is damaged: equal is 'yes'"),
        (b'{"body": ', BambooError, "verdict is damaged"),
        (b"[]", BambooError, "verdict is damaged"),
        (b"[" * 100_000, BambooError, "verdict is damaged"),
    ],
)
def test_a_verdict_that_is_none_is_an_error(
    verdict: bytes, kind: type[BambooError], says: str
) -> None:
    with pytest.raises(BambooError, match=says) as error:
        rented_check._read(verdict)
    assert type(error.value) is kind
