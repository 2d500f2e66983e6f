"""The one door to prices: the newest of the installed catalogue and the user's, or a refusal."""

import json
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from bamboo.config.catalogue import (
    installed_catalogue,
    load_catalogue,
    read_catalogue,
    user_catalogue,
)
from bamboo.errors import InputError
from bamboo.planner.prices.catalogue import Catalogue, catalogue_from
from bamboo.planner.prices.refreshed import catalogue_json, refreshed
from bamboo.ports import PricesSeen, TypeFacts

T4 = TypeFacts(gpu="T4", gpus=1, gpu_memory_mib=16384, vcpus=4, network_gbps=5.0)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("BAMBOO_HOME", str(tmp_path))
    monkeypatch.setattr("bamboo.config.catalogue.present_day", lambda: date(2026, 12, 2))
    return tmp_path


def asked(region: str = "us-east-1", *, at: str = "2026-12-01T10:00:00Z") -> Catalogue:
    seen = PricesSeen(
        region=region,
        zone_ids={f"{region}a": "z1"},
        facts={"g4dn.xlarge": T4},
        spot={"g4dn.xlarge": {f"{region}a": 0.111}},
        quotas={},
    )
    return refreshed(installed_catalogue(), seen, at=at, source="asked")


def keep(text: str, region: str = "us-east-1") -> Path:
    path = user_catalogue(region)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def with_value(value: object, *keys: str) -> str:
    """The text of a catalogue with one other value."""
    body = json.loads(catalogue_json(asked()))
    place = body
    for key in keys[:-1]:
        place = place[key]
    assert keys[-1] in place
    place[keys[-1]] = value
    return json.dumps(body)


def test_without_a_catalogue_of_the_user_the_installed_one_counts(home: Path) -> None:
    for region in (None, "us-east-1", "eu-west-1"):
        found = load_catalogue(region)
        assert found.today is not None
        assert replace(found, today=None, asked="") == installed_catalogue()
    assert user_catalogue("eu-west-1") == home / "prices" / "eu-west-1.json"


def test_a_newer_catalogue_of_the_user_counts_in_its_region_only() -> None:
    path = keep(catalogue_json(asked()))
    for region in (None, "us-east-1"):
        found = load_catalogue(region)
        assert found.file == str(path)
        assert found.spot_prices(["g4dn.xlarge"], ["us-east-1a"])["g4dn.xlarge"] == {
            "us-east-1a": 0.111
        }
    assert not load_catalogue("eu-west-1").find("g4dn.xlarge").spot_by_zone


def test_prices_of_another_region_than_the_one_asked_for_say_so() -> None:
    plain = load_catalogue().sources(["g4dn.xlarge"])
    assert "us-east-1" not in plain
    assert load_catalogue("us-east-1").sources(["g4dn.xlarge"]) == plain
    far = load_catalogue("eu-west-1").sources(["g4dn.xlarge"])
    assert far.startswith("on-demand in us-east-1, not in eu-west-1, as of 2026-07-20 (")
    assert "; spot in us-east-1, not in eu-west-1, is modelled from 2026" in far
    keep(catalogue_json(replace(asked(), region="eu-west-1")), region="eu-west-1")
    own = load_catalogue("eu-west-1")
    said = own.sources(["g4dn.xlarge"])
    assert said.startswith("on-demand in us-east-1, not in eu-west-1, as of 2026-07-20 (")
    assert "; spot as seen " in said
    # What a run keeps of them says so too.
    kept = catalogue_from(json.loads(catalogue_json(own)))
    assert "on-demand in us-east-1, not in eu-west-1," in kept.sources(["g4dn.xlarge"])
    user_catalogue("eu-west-1").unlink()
    kept = catalogue_from(json.loads(catalogue_json(load_catalogue("eu-west-1"))))
    assert "spot in us-east-1, not in eu-west-1," in kept.sources(["g4dn.xlarge"])


def test_an_older_catalogue_of_the_user_changes_no_price_that_was_seen_later() -> None:
    keep(catalogue_json(asked(at="2019-01-01T00:00:00Z")))
    types = load_catalogue().types
    for name, kind in installed_catalogue().types.items():
        assert types[name].on_demand_usd_per_hour == kind.on_demand_usd_per_hour
        assert types[name].spot_usd_per_hour == kind.spot_usd_per_hour
        assert types[name] == kind or kind.spot_from is None


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "Expecting value"),
        ("[" * 100_000, ""),
        ("[]", "no object"),
        ('{"schema_version": 2}', "schema 2"),
        ('{"schema_version": 1}', "lacks the key"),
        (
            '{"schema_version": 1, "region": "r", "on_demand_seen": "2026", "types": []}',
            "lacks the key",
        ),
        ("\0", "Expecting value"),
        (catalogue_json(asked())[:-30], ""),
        (catalogue_json(asked("eu-west-1")), "it is of eu-west-1"),
        (catalogue_json(asked()).replace("0.111", "-0.111"), "-0.111 USD is not above 0"),
        (catalogue_json(asked()).replace("0.111", "NaN"), "nan is not finite"),
        (catalogue_json(asked()).replace("2026-12-01T10:00:00Z", "soon"), "names no time"),
        (
            with_value("2026-12-04", "taken"),
            "'2026-12-04' is still to come, as the clock here says",
        ),
        (with_value("2999", "types", "g4dn.xlarge", "spot_seen"), "'2999' is still to come"),
        (with_value("2999", "auxiliary", "disk", "seen"), "'2999' is still to come"),
        (with_value("\x1b[2J", "auxiliary", "disk", "what"), "is no text that could be shown"),
        (with_value("\ud800", "types", "g4dn.xlarge", "gpu"), "'\\ud800' is no text that"),
        (with_value(["T4"], "types", "g4dn.xlarge", "gpu"), "['T4'] is no text that"),
        (with_value(7, "region"), "7 is no text that could be shown"),
        (with_value("soon", "on_demand_seen"), "'soon' names no time"),
        (with_value("soon", "spot_seen"), "'soon' names no time"),
        (with_value("0001-01-01T00:00:00+14:00", "taken"), "names no time"),
        (with_value(float("inf"), "types", "g4dn.xlarge", "gpus"), "infinity"),
        (with_value(10**400, "types", "g4dn.xlarge", "on_demand_usd_per_hour"), "too large"),
        (with_value(1e308, "types", "g4dn.xlarge", "on_demand_usd_per_hour"), "above 10,000"),
    ],
)
def test_a_damaged_one_is_refused_by_name_with_the_remedy(text: str, why: str) -> None:
    path = keep(text)
    with pytest.raises(InputError) as caught:
        load_catalogue()
    assert str(caught.value).startswith(f"{path} is damaged: ")
    assert why in str(caught.value)
    assert str(caught.value).endswith("delete it, or write it again with `bamboo prices --refresh`")


def test_text_that_is_no_text_and_a_folder_are_refused(home: Path) -> None:
    path = keep("")
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(InputError, match="is damaged"):
        load_catalogue()
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError, match=r"cannot be read: .*; put it back"):
        read_catalogue(path, remedy="put it back")
