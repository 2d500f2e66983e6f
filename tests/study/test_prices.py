"""`bamboo prices`, through the command line and the AWS code against the mock."""

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from bamboo.billing.run_cost import rented_of
from bamboo.config.catalogue import installed_catalogue, load_catalogue, user_catalogue
from bamboo.config.resolve import resolve
from bamboo.controller.resuming import prepare
from bamboo.controller.terms import save_terms, terms_of
from bamboo.errors import InputError
from bamboo.planner.origin import Origin
from bamboo.planner.prices.catalogue import KnownQuota
from bamboo.planner.prices.refreshed import catalogue_json
from bamboo.ports import PricesSeen, TypeFacts
from bamboo.runs.run_folder import RunFolder, catalogue_of
from bamboo.study import prices
from cli import main
from cli.views.prices import prices_body, prices_text
from cloud.fake import FakePrices
from cloud.local.faults import Market
from cloud.local.metadata import MetadataService
from cloud.local.mock_aws import MockAws
from tests.full_disk import files_up_to
from tests.mock_account import ACCOUNT_CALLS, variables_of
from tests.runs.test_reading import folder_of
from tests.study.facts import seen as looked_at
from tests.study.test_planning import JOB, plan

NOW = datetime(2026, 11, 22, 10, tzinfo=UTC)
SPOT = {
    "g4dn.xlarge": {"us-east-1a": 0.2, "us-east-1b": 0.526},
    "g5.xlarge": {"us-east-1a": 0.9054, "us-east-1c": 0.9053},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path / "runs"))
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    return tmp_path / "runs"


@pytest.fixture
def account(monkeypatch: pytest.MonkeyPatch) -> Iterator[MockAws]:
    aws = MockAws(
        metadata=MetadataService(),
        market=Market(SPOT),
        on_change=lambda: None,
        quotas={"L-3819A6DF": 64.0},
        calls=ACCOUNT_CALLS,
    )
    aws.start()
    for name, value in variables_of(aws.url, aws.token).items():
        monkeypatch.setenv(name, value)
    yield aws
    aws.stop()


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main.run(["prices", "--json", *arguments]) == 0
    body = json.loads(capsys.readouterr().out)
    assert isinstance(body, dict)
    return body


def test_the_installed_prices_are_shown_with_age_and_source(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["prices"]) == 0
    text = capsys.readouterr().out
    first, second = text.splitlines()[:2]
    assert first == "us-east-1 (by the installed catalogue)"
    assert "quota All G and VT Spot Instance Requests (L-3819A6DF): 0 vCPUs in a new acc" in second
    assert re.search(r"\[1\] 2026-07-20 \([\d,]+ days old\): list price of Linux on demand", text)
    assert re.search(r"p3\.2xlarge +1 x V100 16 GiB +8 +2\.5 +\$3\.06  \[1\] .*12-24%", text)
    assert max(map(len, text.splitlines())) <= 120
    body = shown(capsys)
    assert len(body["types"]) == len(installed_catalogue().types)
    for kind in body["types"]:
        for price in filter(None, (kind["on_demand"], kind["spot"])):
            assert price["source"]
            assert price["age_days"] > 30
    assert not home.exists()


def test_a_refresh_asks_keeps_and_is_what_everything_plans_with(
    home: Path, account: MockAws, capsys: pytest.CaptureFixture[str]
) -> None:
    body = shown(capsys, "--refresh")
    kinds = {kind["type"]: kind for kind in body["types"]}
    zones = kinds["g4dn.xlarge"]["spot"]["zones"]
    assert [(z["zone_id"], z["zone"], z["usd_per_hour"], z["no_discount"]) for z in zones] == [
        ("use1-az6", "us-east-1a", 0.2, False),
        ("use1-az1", "us-east-1b", 0.526, True),
    ]
    assert [z["no_discount"] for z in kinds["g5.xlarge"]["spot"]["zones"]] == [False, True]
    assert kinds["g4dn.xlarge"]["spot"]["age_days"] == 0
    assert kinds["g4dn.xlarge"]["on_demand"]["age_days"] > 100
    assert kinds["p4d.24xlarge"]["spot"]["range"] is None
    assert not kinds["p3.2xlarge"]["offered"]
    assert body["notes"] == ["not offered in us-east-1: p3.2xlarge, p3.8xlarge, p3.16xlarge"]
    assert [(q["code"], q["vcpus"]) for q in body["quotas"]] == [
        ("L-3819A6DF", 64),
        ("L-7212CCBC", 0),
        ("L-C4BD4855", 0),
    ]
    path = user_catalogue("us-east-1")
    assert body["file"] == str(path)
    assert [p.name for p in path.parent.iterdir()] == ["us-east-1.json"]

    job = home.parent / "job.toml"
    job.write_text('[cloud]\nzones = ["us-east-1a", "us-east-1b"]\n')
    few = ("--samples-per-s", "50", "--type", "g4dn.xlarge", "--max-nodes", "2", "--seeds", "1")
    assert main.run(["cost", str(job), *few, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["options"]
    spot = [row for row in rows if row["market"] == "spot" and row["spread"] == "one"]
    assert spot
    for row in spot:
        assert row["zones"] == {"us-east-1a": row["nodes"]}
        assert row["usd_per_hour"] == pytest.approx(0.2 * row["nodes"])
    assert main.run(["prices"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"use1-az1 us-east-1b +\$0\.5260 +100%  no discount", text)
    assert "p3.2xlarge     1 x V100 16 GiB" in text
    assert "not in the region" in text


def test_without_an_account_the_old_prices_stay_and_their_age_is_said(
    home: Path, no_account: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["prices", "--refresh"]) == 2
    asking, err = capsys.readouterr().err.split("\n", 1)
    assert asking == "asking EC2 for what it has in us-east-1"
    assert err.startswith("error: no newer prices: DescribeAvailabilityZones: no AWS credentials")
    assert "aws configure" in err
    assert re.search(r"still in use: on-demand as of 2026-07-20 \([\d,]+ days old\)", err)
    assert err.rstrip().endswith("by the installed catalogue")
    assert not home.exists()


def test_a_price_above_on_demand_is_shown_as_such_and_no_offer_has_it(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dear = {"g5.xlarge": {"us-east-1a": 1.7, "us-east-1b": 0.4, "us-east-1c": float("nan")}}
    source = FakePrices(answered(facts={"g5.xlarge": facts()}, spot=dear))
    notes = prices.refresh(source, "us-east-1", now=datetime.now(UTC))
    assert "g5.xlarge on spot in us-east-1c is left out: nan is not finite, and no price" in notes
    body = shown(capsys)
    (kind,) = (kind for kind in body["types"] if kind["type"] == "g5.xlarge")
    assert [z["above_on_demand"] for z in kind["spot"]["zones"]] == [False, True]
    (said,) = (one for one in body["warnings"] if "left out" in one)
    assert said.startswith("g5.xlarge on spot in us-east-1a is left out: 1.7 USD is above")
    assert main.run(["prices"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"us-east-1a +\$1\.70 +169%  above on demand", text)
    assert "warning: g5.xlarge on spot in us-east-1a is left out: 1.7 USD is above" in text
    assert "us-east-1c" not in text

    job = home.parent / "job.toml"
    job.write_text('[cloud]\nzones = ["us-east-1a", "us-east-1b"]\n')
    few = ("--samples-per-s", "50", "--type", "g5.xlarge", "--max-nodes", "2", "--seeds", "1")
    assert main.run(["cost", str(job), *few, "--json"]) == 0
    offers = json.loads(capsys.readouterr().out)
    assert said in offers["catalogue"]["price_warnings"]
    spot = [row for row in offers["options"] if row["market"] == "spot"]
    assert spot
    assert {zone for row in spot for zone in row["zones"]} == {"us-east-1b"}


def answered(**changed: Any) -> PricesSeen:
    body: dict[str, Any] = {
        "region": "us-east-1",
        "zone_ids": {"us-east-1a": "use1-az4"},
        "facts": {},
        "spot": {},
        "quotas": {},
    }
    return PricesSeen(**{**body, **changed})


def test_a_refusal_leaves_what_was_refreshed_before_byte_for_byte(
    home: Path, account: MockAws, capsys: pytest.CaptureFixture[str]
) -> None:
    shown(capsys, "--refresh")
    before = user_catalogue("us-east-1").read_bytes()
    for seen in (None, answered()):
        with pytest.raises(Exception, match=r"no newer prices: .*still in use: .*\(today\)"):
            prices.refresh(FakePrices(seen), "us-east-1", now=NOW)
    assert user_catalogue("us-east-1").read_bytes() == before


def test_a_disk_that_fills_up_leaves_what_there_was(home: Path) -> None:
    seen = answered(facts={"g5.xlarge": facts()}, spot={"g5.xlarge": {"us-east-1a": 0.4}})
    prices.refresh(FakePrices(seen), "us-east-1", now=NOW)
    path = user_catalogue("us-east-1")
    before = path.read_bytes()

    says = r"File too large; make room there; still in use: .*2026-11-22"
    with files_up_to(100), pytest.raises(InputError, match=says):
        prices.refresh(FakePrices(seen), "us-east-1", now=NOW)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_damaged_catalogue_is_refused_everywhere_until_it_is_written_anew(
    home: Path, account: MockAws, capsys: pytest.CaptureFixture[str]
) -> None:
    path = user_catalogue("us-east-1")
    path.parent.mkdir(parents=True)
    path.write_text("{")
    job = home.parent / "job.toml"
    job.write_text("")
    for verb in (["prices"], ["cost", str(job), "--samples-per-s", "50"]):
        assert main.run(verb) == 2
        assert f"error: {path} is damaged: " in capsys.readouterr().err
    with pytest.raises(InputError, match="is damaged"):
        prices.refresh(FakePrices(None), "us-east-1", now=NOW)
    assert shown(capsys, "--refresh")["file"] == str(path)


def test_a_region_without_prices_of_its_own_says_so(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.run(["prices", "--region", "eu-west-1"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("eu-west-1: no prices of its own yet, those of us-east-1 stand for them")
    for region in ("..", "us-east-1/x", "nowhere", ""):
        assert main.run(["prices", "--region", region]) == 2
        assert "is no name of a region" in capsys.readouterr().err


def test_a_place_that_cannot_be_written_is_named(home: Path) -> None:
    home.mkdir()
    (home / "prices").write_text("a file")
    seen = answered(facts={"g5.xlarge": facts()})
    with pytest.raises(InputError, match=r"prices cannot be made: .*set BAMBOO_HOME"):
        prices.refresh(FakePrices(seen), "us-east-1", now=NOW)


def facts() -> TypeFacts:
    return TypeFacts(gpu="A10G", gpus=1, gpu_memory_mib=22888, vcpus=4, network_gbps=2.5)


def test_quotas_of_the_account_are_kept_and_shown(home: Path) -> None:
    seen = answered(
        facts={"g5.xlarge": facts()},
        spot={"g5.xlarge": {"us-east-1a": 0.4}},
        quotas={"L-3819A6DF": 64.0},
    )
    prices.refresh(FakePrices(seen), "us-east-1", now=NOW)
    catalogue = load_catalogue()
    assert catalogue.quotas == {
        "L-3819A6DF": KnownQuota(
            vcpus=64.0,
            origin=Origin(seen="2026-11-22T10:00:00Z", source="asked of EC2 in us-east-1"),
        )
    }
    text = prices_text(prices_body(catalogue, region="us-east-1", today=NOW.date()))
    assert "L-3819A6DF): 64 vCPUs in this account (today)" in text


def test_a_run_keeps_the_prices_that_it_was_planned_with(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder: RunFolder = folder_of(home)
    assert catalogue_of(folder) == installed_catalogue()
    dear = {"g5.xlarge": {"us-east-1a": 0.4, "us-east-1b": 0.6}}
    before = answered(facts={"g5.xlarge": facts()}, spot=dear)
    prices.refresh(FakePrices(before), "us-east-1", now=NOW)
    planned = plan()
    assert planned.usd_per_hour == pytest.approx(4 * 0.4)
    save_terms(folder, resolve(JOB), planned, started_s=1.0, detached=False)
    user_catalogue("us-east-1").unlink()
    later = plan()
    assert later.usd_per_hour != planned.usd_per_hour
    save_terms(folder, resolve(JOB), later, started_s=1.0, detached=False)
    kept = terms_of(folder).catalogue
    assert kept.spot_prices(["g5.xlarge"], ["us-east-1a"]) == {"g5.xlarge": {"us-east-1a": 0.4}}
    assert kept.types == planned.catalogue.types
    # A resume plans with the prices that it is billed by.
    monkeypatch.setattr("bamboo.controller.launching.seen_for_launch", looked_at)
    assert prepare(folder, ()).prepared.planned.usd_per_hour == planned.usd_per_hour


def test_a_run_is_not_resumed_in_a_region_of_other_prices(home: Path) -> None:
    folder: RunFolder = folder_of(home)
    save_terms(folder, resolve(JOB), plan(), started_s=1.0, detached=False)
    elsewhere = ("cloud.region=eu-west-1", 'cloud.zones=["eu-west-1a"]')
    with pytest.raises(InputError, match="billed by the prices of us-east-1; leave the setting"):
        prepare(folder, elsewhere)


def test_the_bill_of_a_run_is_by_its_own_prices(home: Path) -> None:
    folder = folder_of(home)
    folder.cloud.write_text(
        '{"kind": "start", "t": 1.0, "instance": "i-1", "zone": "a", "instance_type": "g5.xlarge", '
        '"market": "spot", "usd_per_hour": 0.4}\n'
    )
    (rented,) = rented_of(folder, [])
    assert rented.on_demand_usd_per_hour == 1.006
    kind = replace(installed_catalogue().find("g5.xlarge"), on_demand_usd_per_hour=2.0)
    own = replace(installed_catalogue(), types={"g5.xlarge": kind})
    folder.prices.write_text(catalogue_json(own))
    (rented,) = rented_of(folder, [])
    assert rented.on_demand_usd_per_hour == 2.0


@pytest.mark.parametrize(
    "value", ["NaN", "Infinity", "-1", "true", "1" + "0" * 400, '"soon"', "[]"]
)
@pytest.mark.parametrize("key", ["t", "usd_per_hour"])
def test_a_time_or_a_price_that_no_cloud_has_is_no_part_of_a_bill(
    home: Path, key: str, value: str
) -> None:
    folder = folder_of(home)
    garbled = {"t": "1.0", "usd_per_hour": "0.4"} | {key: value}
    rest = ", ".join(f'"{name}": {text}' for name, text in garbled.items())
    folder.cloud.write_text(
        '{"kind": "start", "instance": "i-1", "zone": "a", "instance_type": "g5.xlarge", '
        f'"market": "spot", {rest}}}\n'
    )
    with pytest.raises(InputError, match=r"cloud\.jsonl: a record lacks or garbles .*original"):
        rented_of(folder, [])


def test_the_prices_of_a_run_that_are_damaged_are_named(home: Path) -> None:
    folder = folder_of(home)
    folder.prices.write_text("{")
    with pytest.raises(InputError, match=r"prices\.json is damaged: .*put the original back"):
        catalogue_of(folder)


def asked_for_launch(source: FakePrices, *, in_s: float = 0.0) -> list[str]:
    notes: list[str] = []
    prices.refresh_for_launch(
        "us-east-1",
        note=notes.append,
        source=lambda region: source,
        now=datetime.now(UTC) + timedelta(seconds=in_s),
    )
    return notes


def test_a_launch_into_an_account_asks_for_present_prices_once_an_hour(home: Path) -> None:
    seen = answered(facts={"g5.xlarge": facts()}, notes=("quotas: no right to see them",))
    first, *rest = asked_for_launch(FakePrices(seen))
    assert first == "asking EC2 for its prices and your quotas in us-east-1"
    assert "quotas: no right to see them" in rest
    assert user_catalogue("us-east-1").exists()
    assert asked_for_launch(FakePrices(None), in_s=60.0) == []
    _, refused = asked_for_launch(FakePrices(None), in_s=3700.0)
    assert refused.startswith("no newer prices: no AWS credentials were found")


def test_a_launch_goes_on_without_them(home: Path) -> None:
    _, refused = asked_for_launch(FakePrices(None))
    assert "still in use: " in refused
    assert not user_catalogue("us-east-1").exists()
