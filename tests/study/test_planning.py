"""From a job to its plan, strategy and requests."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bamboo.config.catalogue import installed_catalogue
from bamboo.config.resolve import resolve
from bamboo.config.tree import (
    CloudConfig,
    ClusterConfig,
    JobConfig,
    ModelConfig,
    Subnet,
    TrainConfig,
)
from bamboo.errors import InputError
from bamboo.ids import RunId
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.planner.prices.refreshed import refreshed
from bamboo.ports import PricesSeen
from bamboo.sites.bought import speeds_of
from bamboo.study.planning import Planned, plan_job
from bamboo.study.workload import layer_facts
from cli.views.brief import plan_lines
from cli.views.plan import plan_body, plan_text, quota_text, requests_text
from tests.study.facts import seen

JOB = JobConfig(
    model=ModelConfig(layers=6, width=64, heads=2, context=16),
    train=TrainConfig(steps=10, batch=8, microbatch=2),
    cluster=ClusterConfig(stages=4, redundancy="eager"),
    cloud=CloudConfig(instance_types=("g5.xlarge", "g4dn.xlarge")),
    file="job.toml",
)


def plan(job: JobConfig = JOB, *, cores: int = 64, optimizer_ms: float = 0.0) -> Planned:
    job = resolve(job)
    here = seen(job)
    here["layers"] = [{**layer, "optimizer_ms": optimizer_ms} for layer in here["layers"]]
    return plan_job(job, {**here, "cores": cores}, run=RunId("r"), now_s=1000.0)


def test_the_cheapest_pool_is_taken() -> None:
    planned = plan()
    prices = planned.catalogue.spot_prices(["g5.xlarge", "g4dn.xlarge"], JOB.cloud.zones)
    cheapest = min(price for zones in prices.values() for price in zones.values())
    assert planned.usd_per_hour == pytest.approx(4 * cheapest)
    assert prices[planned.pool.instance_type][planned.pool.zone] == cheapest
    assert planned.plan.instance_type.name == planned.pool.instance_type


def test_on_demand_is_asked_for_as_such() -> None:
    planned = plan(replace(JOB, cloud=replace(JOB.cloud, market="on-demand")))
    assert planned.pool.market == "on-demand"
    assert planned.usd_per_hour == pytest.approx(4 * 0.526)
    assert "InstanceMarketOptions" not in planned.requests[0]
    assert {spread.fatal_per_hour for spread in planned.plan.spreads} == {0.0}


def test_an_unknown_type_and_one_without_a_price_are_refused() -> None:
    for types in (("x9.tiny",), ("g5.48xlarge",)):
        with pytest.raises(InputError) as caught:
            plan(replace(JOB, cloud=CloudConfig(instance_types=types)))
        assert types[0] in str(caught.value)


def test_the_request_says_all_that_matters() -> None:
    (asked,) = plan().requests
    assert asked["call"] == "RunInstances"
    request = asked["arguments"]
    assert request["MaxCount"] == 4
    assert request["ClientToken"] == "r-1"
    assert request["InstanceMarketOptions"]["SpotOptions"]["SpotInstanceType"] == "one-time"
    assert '"HttpTokens": "required"' in requests_text(asked)


def test_the_strategy_holds_the_semantics_and_the_cut() -> None:
    planned = plan()
    strategy = planned.strategy
    assert strategy.semantics.data_digest == "d" * 64
    assert strategy.placement.cut == planned.plan.cut
    assert strategy.placement.redundancy == "eager"
    elsewhere = plan(replace(JOB, cluster=replace(JOB.cluster, stages=2, redundancy="off")))
    assert elsewhere.strategy.semantics.hash() == strategy.semantics.hash()
    reseeded = plan(replace(JOB, train=replace(JOB.train, seed=2)))
    assert reseeded.strategy.semantics.hash() != strategy.semantics.hash()


def test_a_given_cut_is_kept() -> None:
    planned = plan(replace(JOB, cluster=replace(JOB.cluster, cut=(0, 1, 2, 3))))
    assert planned.plan.cut == (0, 1, 2, 3, 8)


def test_a_step_is_timed_by_what_was_measured_or_given() -> None:
    measured = plan().plan.expected
    assert measured is not None
    assert measured.source == "measured on this machine's CPU, with a core for every node"
    virtual = replace(JOB.cluster, device="virtual", redundancy="off")
    given = plan(replace(JOB, cluster=virtual)).plan.expected
    assert given is not None
    assert given.source == "given: the virtual device's figures"
    # 1F1B: (M + P - 1) forwards and backwards of 20 and 40 ms.
    assert given.step_s == pytest.approx((4 + 3) * 0.060)


def test_a_users_layers_are_balanced_by_their_time() -> None:
    job = replace(JOB, model=replace(JOB.model, model="mine.py:build"))
    assert {facts.forward_flops for facts in layer_facts(job, seen(job))} == {4.0}


def test_what_is_frozen_is_not_counted_among_the_trained_parameters() -> None:
    planned = plan()
    assert planned.plan.frozen_bytes == 0
    frozen = replace(planned, plan=replace(planned.plan, frozen_bytes=2048))
    for lines in (plan_text("r", frozen).splitlines(), plan_lines("r", frozen)):
        assert "36,000 trained parameters in 8 layers, 2.0 KiB frozen or buffers" in lines[1]


def test_the_plan_on_paper() -> None:
    lines = plan_text("r", plan(cores=2)).splitlines()
    assert lines[0] == "r: 10 steps of 8 samples, 1 pipeline of 4 stages, redundancy eager"
    assert lines[1].startswith("  36,000 parameters in 8 layers, 1 virtual node, semantics ")
    assert lines[2] == "  data: 2 files, 97.7 KiB of UTF-8 text"
    assert lines.pop(3) == "  recompute auto is off: the plan fits one T4 without."
    assert " ".join(" ".join(lines[3:6]).split()) == (
        "losses: 0.461 per node-hour, modelled by what is interrupted within a month: 15-20 % of "
        "g4dn.xlarge in us-east-1 and > 20 % of p3.2xlarge, which lost 0.611 in Bamboo's trace "
        "(AWS Spot Instance Advisor, 2025-06-28)"
    )
    del lines[3:6]
    told = "  gradients go whole, as auto takes no other kind; "
    assert lines.pop(3) == told + "`bamboo explain` says what other kinds save"
    assert lines[3:9] == [
        "  memory per node at most, without a loss; state: parameters, gradients, moments in fp32",
        "    stage  layers  shadowed by      state  activations     stash    replica      ahead"
        "       total",
        "        0  0 to 1  node of 3     58.6 KiB    512.0 KiB  32.0 KiB  109.4 KiB  512.0 KiB"
        "     1.2 MiB",
        "        1  2 to 3  node of 0    136.7 KiB    512.0 KiB  64.0 KiB  171.9 KiB  512.0 KiB"
        "     1.4 MiB",
        "        2  4 to 5  node of 1    214.8 KiB    384.0 KiB  64.0 KiB  234.4 KiB  512.0 KiB"
        "     1.4 MiB",
        "        3  6 to 7  node of 2    293.0 KiB    128.0 KiB  32.0 KiB   46.9 KiB  512.0 KiB"
        "  1011.8 KiB",
    ]
    text = "\n".join(lines)
    assert "spot in us-east-1a: modelled, nothing is paid" in text
    assert "    on-demand $2.10/h; spot $0." in text
    assert "    on-demand as of 2026-07-20 (" in text
    assert "days old); spot is modelled from " in text
    assert "measured on this machine's CPU, 2 cores that 4 nodes share" in text
    assert max(map(len, lines)) <= 100
    assert "The loss of any one of the 4 nodes is survived" in text


def test_every_figure_of_a_plan_counts_the_cores_that_its_nodes_share() -> None:
    """A stage takes 12 ms a layer and microbatch; eight layers for four microbatches."""
    calm, here = plan(), plan(cores=2)
    for own, shared in ((calm.plan.expected, here.plan.expected), (calm.plan.full, here.plan.full)):
        assert own is not None
        assert shared is not None
        work_s = 4 * 8 * 0.012
        assert shared.step_s > own.step_s
        assert shared.step_s >= work_s / 2
        assert shared.samples_per_s == pytest.approx(8 / shared.step_s)
    promised = here.promised()
    # A fallback of fewer stages has less to wait for.
    assert calm.least_step_s() < here.least_step_s() <= promised["step_s"]
    assert promised["samples_per_usd"] < calm.promised()["samples_per_usd"]
    assert promised["samples_per_s_source"].endswith("CPU, 2 cores that 4 nodes share")
    assert here.grids == calm.grids, "a run decides as if each node had its own"
    two_threads = replace(JOB, cluster=replace(JOB.cluster, threads=2))
    assert plan(two_threads, cores=4).plan.full == here.plan.full
    idle = replace(JOB.cluster, device="cpu", allow_idle_gpu=True)
    alone = replace(JOB, cluster=idle, cloud=replace(JOB.cloud, provider="ec2"))
    assert plan(alone, cores=2).plan.full == plan(alone).plan.full, "instances share nothing"


def test_links_in_an_account_have_the_rate_of_its_instances() -> None:
    """Also where the layers of a model are timed on this machine."""
    idle = replace(JOB.cluster, device="cpu", allow_idle_gpu=True)
    account = replace(JOB.cloud, provider="ec2", instance_types=("g5.12xlarge",))
    there = plan(replace(JOB, cluster=idle, cloud=account)).workload
    gbps = there.bytes_per_s * 8 / 1e9, there.node_bytes_per_s * 8 / 1e9
    assert gbps == (5.0, 40.0), "one connection, and all of a node"
    here = plan(replace(JOB, cluster=idle)).workload
    assert (here.bytes_per_s, here.node_bytes_per_s) == (0.0, 0.0)


def test_a_virtual_device_needs_a_core_only_while_it_computes() -> None:
    """12 ms of the 15 ms that a layer is given; then 12 of 60."""
    tight = replace(JOB.cluster, device="virtual", redundancy="off",
                    virtual_forward_ms=(10.0,), virtual_backward_ms=(20.0,))  # fmt: skip
    job = replace(JOB, cluster=tight)
    calm, here, alone = plan(job), plan(job, cores=2), plan(job, cores=1)
    times_s = [one.promised()["step_s"] for one in (calm, here, alone)]
    assert times_s[0] == pytest.approx((4 + 3) * 0.030)
    assert times_s[0] < times_s[1] < times_s[2]
    assert "what it computes on 2 cores that 4 nodes share" in " ".join(
        plan_text("r", here).split()
    )
    roomy = replace(job, cluster=replace(tight, virtual_forward_ms=(200.0,),
                                         virtual_backward_ms=(400.0,)))  # fmt: skip
    calm_s = plan(roomy).promised()["step_s"]
    assert plan(roomy, cores=2).promised()["step_s"] == calm_s
    # The optimizer takes what it takes, of all nodes at once, once that is worth a word.
    assert plan(roomy, cores=2, optimizer_ms=10.0).promised()["step_s"] == calm_s
    for cores, times in ((4, 1), (2, 2)):
        found_s = plan(roomy, cores=cores, optimizer_ms=50.0).promised()["step_s"]
        assert found_s == pytest.approx(calm_s + times * 2 * 0.050)


def test_the_prices_of_the_spreads_on_paper() -> None:
    text = plan_text("r", plan())
    assert "  expected price per hour of each spread over the zones of us-east-1:" in text
    assert "\n    one, taken  4 in a " in text
    assert "\n    neighbours  2 in a, 2 in b " in text
    assert "0.461 losses per node-hour on spot" in " ".join(text.split())


def test_a_spread_over_zones_is_asked_for_zone_by_zone() -> None:
    apart = replace(JOB.cluster, spread="neighbours", standbys=1)
    planned = plan(replace(JOB, cluster=apart))
    prices = planned.catalogue.spot_prices([planned.pool.instance_type], JOB.cloud.zones)
    (of_type,) = prices.values()
    low, high = sorted(of_type, key=lambda zone: of_type[zone])
    assert planned.zones == {low: 3, high: 2}
    assert planned.usd_per_hour == pytest.approx(3 * of_type[low] + 2 * of_type[high])
    asked = [request["arguments"] for request in planned.requests]
    assert {r["Placement"]["AvailabilityZone"]: r["MaxCount"] for r in asked} == planned.zones
    assert [r["ClientToken"] for r in asked] == ["r-1", "r-2"]
    text = plan_text("r", planned)
    assert f"spot in {low} and {high}" in " ".join(text.split())
    assert "neighbours is taken, as the job says, at $" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 100
    assert plan().zones == {}, "one zone is whichever is cheapest when it is asked"


def test_without_redundancy_nobody_shadows_and_the_plan_says_so() -> None:
    planned = plan(replace(JOB, cluster=replace(JOB.cluster, redundancy="off")))
    text = plan_text("r", planned)
    assert "nobody" in text
    assert "The loss of any one of the 4 nodes ends the run. Redundancy is 'off'" in text


def test_the_plan_as_json() -> None:
    planned = plan()
    body = plan_body("r", planned)
    assert body["instances"] == 4
    assert body["data"]["files"] == 2
    assert body["usd_per_hour"] == planned.usd_per_hour
    assert body["requests"] == list(planned.requests)
    assert body["spread"] == "one"
    assert [spread["name"] for spread in body["spreads"]] == ["one", "neighbours"]
    assert body["spread_reason"].startswith("one is taken: $")
    for spread in body["spreads"]:
        parts = ("instances_usd_per_hour", "transfer_usd_per_hour", "fatal_usd_per_hour")
        assert spread["usd_per_hour"] == pytest.approx(sum(spread[part] for part in parts))
    assert body["samples_per_usd"] == pytest.approx(
        body["samples_per_s"] * 3600 / body["usd_per_hour"]
    )
    stage = body["memory"][0]
    assert stage["total"] == sum(v for k, v in stage.items() if k not in ("stage", "total"))


def test_a_plan_says_how_much_unlike_microbatches_differ() -> None:
    def with_spread(spread: float) -> Planned:
        job = resolve(JOB)
        found = seen(job)
        found["layers"] = [{**one, "spread": spread} for one in found["layers"]]
        return plan_job(job, found, run=RunId("r"), now_s=0.0)

    far, near = with_spread(0.4), with_spread(0.05)
    assert plan_body("r", far)["microbatch_spread"] == pytest.approx(0.4)
    assert "unlike microbatches, whose times differ by 40% of it; memory is by" in _flat(far)
    assert "unlike" not in _flat(near)


def _flat(planned: Planned) -> str:
    return " ".join(plan_text("r", planned).split())


def test_anchors_are_asked_for_on_demand_and_priced_so() -> None:
    spot = plan()
    mixed = plan(replace(JOB, cloud=replace(JOB.cloud, anchors=2)))
    kind = mixed.catalogue.find(mixed.pool.instance_type)
    (price,) = {mixed.usd_per_hour - spot.usd_per_hour}
    dearer = 2 * (kind.on_demand_usd_per_hour - spot.usd_per_hour / 4)
    assert price == pytest.approx(dearer)
    fixed, rest = (request["arguments"] for request in mixed.requests)
    assert (fixed["MaxCount"], rest["MaxCount"]) == (2, 2)
    assert "InstanceMarketOptions" not in fixed
    assert rest["InstanceMarketOptions"]["MarketType"] == "spot"
    assert "2 anchors of them on demand" in " ".join(plan_text("r", mixed).split())


def test_a_dry_run_of_ec2_shows_each_call_and_no_user_data(tmp_path: Path) -> None:
    (tmp_path / "boot.sh").write_text("echo secret-of-the-boot\n")
    cloud = replace(
        JOB.cloud,
        provider="ec2",
        instance_types=("g5.xlarge",),
        subnets=tuple(Subnet(zone=zone, id=f"subnet-{zone[-1]}") for zone in JOB.cloud.zones),
    )
    planned = plan(replace(JOB, cloud=replace(cloud, anchors=1)))
    said = " ".join(quota_text(planned).split())
    assert "3 g5.xlarge" in said
    assert "1 g5.xlarge" in said
    assert "L-3819A6DF" in said
    (fleet,) = plan(replace(JOB, cloud=cloud)).requests
    assert fleet["call"] == "CreateFleet"
    assert fleet["arguments"]["Type"] == "instant"
    (config,) = fleet["arguments"]["LaunchTemplateConfigs"]
    assert [one["Priority"] for one in config["Overrides"]] == [
        float(n) for n in range(len(config["Overrides"]))
    ]
    assert len(config["Overrides"]) > 1
    booted = replace(cloud, image="ami-1", boot_script="boot.sh", bucket="b-1")
    job = replace(JOB, cloud=booted, file=str(tmp_path / "job.toml"))
    (call,) = plan(job).requests
    assert call["call"] == "RunInstances"
    assert call["arguments"]["SubnetId"] in ("subnet-a", "subnet-b")
    assert "secret-of-the-boot" not in requests_text(call)
    assert set(call["arguments"]["UserData"]) == {"sha256", "bytes"}


def test_types_rank_by_price_or_by_what_their_speed_costs() -> None:
    types = ("g4dn.xlarge", "g5.xlarge")
    by_price = plan(replace(JOB, cloud=replace(JOB.cloud, instance_types=types)))
    by_value = plan(replace(JOB, cloud=replace(JOB.cloud, instance_types=types, prefer="value")))
    assert by_price.pool.instance_type == "g4dn.xlarge"
    assert by_value.pool.instance_type == "g5.xlarge"
    speeds = speeds_of(by_value.job, by_value.catalogue)
    assert speeds["g4dn.xlarge"] == 1.0
    assert speeds["g5.xlarge"] > 2.0
    (asked,) = by_value.requests
    assert asked["arguments"]["InstanceType"] == "g5.xlarge"


def with_spot(spot: dict[str, dict[str, float]]) -> Catalogue:
    answer = PricesSeen(region="us-east-1", zone_ids={}, facts={}, spot=spot, quotas={})
    today = datetime.now(UTC).date()
    base = replace(installed_catalogue(), today=today)
    return refreshed(base, answer, at=today.isoformat(), source="asked")


def test_a_pool_above_on_demand_is_not_planned_with_and_the_plan_says_so() -> None:
    catalogue = with_spot({"g4dn.xlarge": {"us-east-1a": 0.9}, "g5.xlarge": {"us-east-1a": 1.0}})
    job = resolve(JOB)
    planned = plan_job(job, seen(job), run=RunId("r"), now_s=1000.0, catalogue=catalogue)
    assert planned.pool.instance_type == "g5.xlarge", "though g4dn.xlarge looks cheaper"
    assert planned.usd_per_hour == pytest.approx(4 * 1.0)
    sentence = (
        "g4dn.xlarge on spot in us-east-1a is left out: 0.9 USD is above the on-demand price of "
        "0.526 USD"
    )
    assert plan_body("r", planned)["price_warnings"] == [sentence]
    assert sentence in " ".join(plan_text("r", planned).split())
    alone = resolve(replace(JOB, cloud=replace(JOB.cloud, instance_types=("g4dn.xlarge",))))
    with pytest.raises(
        InputError, match=r"none has a spot price in the catalogue; g4dn\.xlarge on"
    ):
        plan_job(alone, seen(alone), run=RunId("r"), now_s=1000.0, catalogue=catalogue)
