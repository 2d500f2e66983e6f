"""What a plan needs beside its instances, and of the account's quotas: in words and as JSON."""

import pytest

from bamboo.config.catalogue import installed_catalogue
from bamboo.planner.prices.auxiliary import auxiliary_parts, extras_of
from cli.views.option_words import auxiliary_body, auxiliary_lines
from cli.views.quota import quota_body, quota_lines


def test_what_stands_beside_a_plan_is_said_in_words_and_as_json() -> None:
    extras = extras_of(instances=8, step_s=6.0, crossing_bytes=1.7e9)
    parts = auxiliary_parts(installed_catalogue().auxiliary, extras)
    body = auxiliary_body(parts)
    assert body["modelled"]
    assert body["usd_per_hour"] == pytest.approx(sum(p["usd_per_hour"] for p in body["parts"]))
    assert auxiliary_lines(parts) == [
        "  besides the instances, modelled: $20.57/h",
        "    disks        $0.1052  8 x 120 GiB of gp3 volumes at $0.08 per GB-month",
        "    addresses    $0.0400  8 x public IPv4 address at $0.005 per hour",
        "    coordinator  $0.0280  1 x t3.small on demand at $0.0208 per hour, with address and "
        "disk",
        "    transfer      $20.40  1,020.0 GB an hour of bytes between zones ($0.01 out and $0.01 "
        "in) at $0.02 per GB",
    ]


def test_the_quota_of_a_plan_is_said_in_words_and_as_json() -> None:
    catalogue = installed_catalogue()
    plan = {"g5.xlarge": 3, "p3.2xlarge": 2}
    lines = quota_lines(catalogue, plan, spot=True, region="eu-west-1")
    assert lines[0].startswith("  quota: 3 g5.xlarge need 12 vCPUs of the quota `All G and VT Spot")
    assert sum(line.startswith("  quota: ") for line in lines) == 2
    assert "which is 0 in a new account: ask for them first" in " ".join(" ".join(lines).split())
    (g, p) = quota_body(catalogue, plan, spot=False, region="eu-west-1")
    assert (g["code"], g["vcpus"], g["has_vcpus"], g["enough"]) == ("L-DB2E81BA", 12, None, False)
    assert (p["code"], p["instances"], p["region"]) == (
        "L-417A185B",
        {"p3.2xlarge": 2},
        "eu-west-1",
    )
