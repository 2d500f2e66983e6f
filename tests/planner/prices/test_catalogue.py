"""The catalogue that is installed, and what a damaged one is refused for."""

from itertools import permutations

import pytest

from bamboo.config.catalogue import installed_catalogue, load_gpus
from bamboo.config.tree import CloudConfig
from bamboo.errors import InputError
from bamboo.planner.prices.auxiliary import NEEDED
from bamboo.planner.prices.catalogue import USABLE_SHARE, catalogue_from, parse_catalogue

SMALL = """
schema_version = 1
on_demand_seen = "2026-07-20"
spot_seen = "2025"
region = "us-east-1"
[types."g5.xlarge"]
gpu = "A10G"
gpus = 1
gpu_memory_gib = 24
network_gbps = 2.5
on_demand_usd_per_hour = 1.006
spot_usd_per_hour = [0.36, 0.51]
"""


def test_the_installed_catalogue_has_dates_and_the_default_type() -> None:
    catalogue = installed_catalogue()
    assert catalogue.on_demand_seen == "2026-07-20"
    kind = catalogue.find(CloudConfig().instance_types[0])
    assert kind.on_demand_usd_per_hour == 0.526
    assert kind.gpu_memory_bytes == int(16 * USABLE_SHARE * 2**30)
    assert catalogue.on_demand_prices()["p4d.24xlarge"] == 21.9576


def test_modelled_spot_prices_lie_in_the_range_and_do_not_move() -> None:
    catalogue = installed_catalogue()
    prices = catalogue.spot_prices(catalogue.types, ["us-east-1a", "us-east-1b"])
    assert set(prices) == {n for n, t in catalogue.types.items() if t.spot_usd_per_hour}
    for name, zones in prices.items():
        low, high = catalogue.types[name].spot_usd_per_hour or (0.0, 0.0)
        assert all(low - 5e-5 <= price <= high + 5e-5 for price in zones.values())
        assert len(set(zones.values())) == 2
    assert prices["g4dn.xlarge"] == {"us-east-1a": 0.1937, "us-east-1b": 0.2981}


def test_an_unknown_type_and_an_unknown_spot_price_are_input_errors() -> None:
    catalogue = installed_catalogue()
    with pytest.raises(InputError, match=r"'p9\.large' is not in the catalogue of 2026-07-20"):
        catalogue.find("p9.large")
    with pytest.raises(InputError, match=r"'g5\.xlrage' .*; did you mean g5\.xlarge\? take one of"):
        catalogue.find("g5.xlrage")
    assert catalogue.sources([]) == "no price was used, of those by the installed catalogue"
    with pytest.raises(InputError, match=r"no spot price of g6\.xlarge; take market"):
        catalogue.modelled_spot_usd_per_hour("g6.xlarge", "us-east-1a")


def test_a_catalogue_comes_back_from_its_text() -> None:
    kind = parse_catalogue(SMALL).find("g5.xlarge")
    assert (kind.gpu, kind.gpus, kind.spot_usd_per_hour) == ("A10G", 1, (0.36, 0.51))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema_version = 1", "schema_version = 2", "schema 2"),
        ('gpu = "A10G"', "", "lacks the key 'gpu'"),
        ("[0.36, 0.51]", "[0.51, 0.36]", "spot from 0.51 to 0.36 USD/h is no range"),
        ("[0.36, 0.51]", "[0.36, 1.51]", "1.51 USD is above the on-demand price of 1.006 USD"),
        ("gpus = 1", "gpus = 0", "are above 0"),
        ("gpus = 1", "gpus = 1\nvcpus = -4", "are above 0"),
        ("gpus = 1", "gpus = 1\nhost_memory_gib = 0", "are above 0"),
        ("1.006", "nan", "g5.xlarge on demand: nan is not finite"),
        ("1.006", "inf", "inf is not finite"),
        ("1.006", "true", "no number"),
        ("1.006", "'cheap'", "'cheap' is no number"),
        ("[0.36, 0.51]", "[0.36]", "wrong kind"),
        ("[0.36, 0.51]", "0.36", "wrong kind"),
        ("[0.36, 0.51]", "[0.36, 0.51]\nspot_by_zone = {a = 0.4}", "not that of its zones"),
        ('"2026-07-20"', '"last summer"', "'last summer' names no time"),
        ('[types."g5.xlarge"]', "[types]", "wrong kind"),
        ("schema_version = 1", 'schema_version = 1\ntaken = "?"', "names no time"),
        (
            "schema_version = 1",
            'schema_version = 1\nquotas = {L = {vcpus = -1, seen = "2026", source = ""}}',
            "below 0",
        ),
        (
            "schema_version = 1",
            'schema_version = 1\nauxiliary = {disk = {usd = -1, unit = "", what = "", '
            'seen = "2026", source = ""}}',
            r"auxiliary\.disk: -1 USD is not above 0",
        ),
    ],
)
def test_a_damaged_catalogue_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_catalogue(SMALL.replace(old, new))


def test_what_is_no_catalogue_at_all_is_refused() -> None:
    for raw in (None, 3, [], {}, {"schema_version": 1}):
        with pytest.raises(ValueError):
            catalogue_from(raw)
    head = SMALL.partition("[types")[0]
    with pytest.raises(ValueError, match="has no types"):
        parse_catalogue(head + "[types]")


def test_every_installed_price_has_a_date_and_a_source() -> None:
    catalogue = installed_catalogue()
    for kind in catalogue.types.values():
        priced = [kind.on_demand_from] + [kind.spot_from] * (kind.spot_usd_per_hour is not None)
        assert all(origin is not None and origin.source for origin in priced)
        assert kind.vcpus
        assert kind.host_memory_gib
    assert set(catalogue.auxiliary) == set(NEEDED)
    for name, price in catalogue.auxiliary.items():
        assert price.unit == NEEDED[name]
        assert price.origin.source
        assert price.usd > 0


def test_installed_figures_are_those_that_were_looked_up() -> None:
    types = installed_catalogue().types
    shapes = {name: (k.gpus, k.gpu, k.gpu_memory_gib) for name, k in types.items()}
    assert shapes["g6e.xlarge"] == (1, "L40S", 44.7031)
    assert shapes["p5en.48xlarge"] == (8, "H200", 141)
    assert {name: k.network_gbps for name, k in types.items() if name.startswith("p3")} == {
        "p3.2xlarge": 2.5,
        "p3.8xlarge": 10,
        "p3.16xlarge": 25,
        "p3dn.24xlarge": 100,
    }
    hosts = {
        name: types[name].host_memory_gib for name in ("g5.xlarge", "g6e.xlarge", "p3.2xlarge")
    }
    assert hosts == {"g5.xlarge": 16, "g6e.xlarge": 32, "p3.2xlarge": 61}
    assert types["p3.2xlarge"].spot_usd_per_hour == (0.38, 0.74)
    assert types["p5en.48xlarge"].on_demand_usd_per_hour == 63.296
    assert shapes["p3dn.24xlarge"] == (8, "V100", 32)
    assert types["g6e.4xlarge"].on_demand_usd_per_hour == 3.00424
    assert types["g6e.4xlarge"].spot_usd_per_hour == (0.7886, 1.1767)


def test_there_are_types_enough_to_compare_and_every_gpu_is_in_the_table() -> None:
    types, table = installed_catalogue().types, load_gpus()
    assert len(types) >= 30
    for kind in types.values():
        listed = table.of(kind.gpu, kind.gpu_memory_gib).memory_gib
        assert 0.9 * listed <= kind.gpu_memory_gib <= listed


def test_of_one_family_a_larger_instance_with_as_many_gpus_is_no_cheaper() -> None:
    types = installed_catalogue().types.values()
    for one, other in permutations(types, 2):
        same = (one.name.partition(".")[0], one.gpus) == (other.name.partition(".")[0], other.gpus)
        if same and (one.vcpus or 0) < (other.vcpus or 0):
            assert one.on_demand_usd_per_hour < other.on_demand_usd_per_hour
            assert one.network_gbps <= other.network_gbps


@pytest.mark.parametrize("number", [10**400, float("inf")])
@pytest.mark.parametrize(
    "key", ["gpus", "gpu_memory_gib", "on_demand_usd_per_hour", "vcpus", "host_memory_gib"]
)
def test_a_number_beyond_use_is_refused(key: str, number: float) -> None:
    kind = {"gpu": "x", "gpus": 1, "gpu_memory_gib": 1, "network_gbps": 1, "vcpus": 1}
    raw = {"schema_version": 1, "region": "r", "on_demand_seen": "2026", "spot_seen": "2026"}
    types = {"t": kind | {"on_demand_usd_per_hour": 1.0} | {key: number}}
    with pytest.raises(ValueError, match=r"wrong kind|no number|no price"):
        catalogue_from(raw | {"types": types})
