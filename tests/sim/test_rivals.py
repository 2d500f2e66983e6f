"""Other ways in the same worlds: what each gains and pays."""

from dataclasses import replace

import pytest

from bamboo.errors import CoreMisuse
from bamboo.planner.origin import Origin
from bamboo.planner.prices.auxiliary import NEEDED, AuxiliaryPrice
from bamboo.planner.risks.checkpoint_cost import checkpoint_puts
from bamboo.planner.risks.zones import USD_PER_GB
from bamboo.sim.market.trace import Trace
from bamboo.sim.run import simulate, simulate_seeds
from bamboo.sim.ways import (
    CHECKPOINT_RESTART,
    ON_DEMAND,
    ORACLE,
    OURS,
    PAPER,
    REROUTING,
    SYSTEMS,
    restart_terms,
    terms_of_rivals,
)
from tests.sim.worlds import STATE_BYTES_PER_S, asked, calm_step_s, trace

EIGHT = "0 +a b c d e f g h"
LOSSES = ("600 -b", "1000 +i", "1400 -c", "2000 +j")


def test_in_a_calm_market_all_do_the_same() -> None:
    one = asked(pipelines=2, redundancy="off", every=10)
    found = {name: simulate(one, trace(EIGHT), system=name) for name in SYSTEMS}
    calm = int(3600 / calm_step_s(one))
    always_ahead_s = calm_step_s(asked(pipelines=2, redundancy="eager", every=10))
    assert {name: f.steps for name, f in found.items() if f.steps != calm} == {
        PAPER: pytest.approx((3600 - 30) / always_ahead_s, abs=1)
    }, "the paper's rules gather for half a minute, and compute ahead all the time"
    assert found[ON_DEMAND].usd == 3 * found[OURS].usd


def test_with_one_stage_ours_goes_on_with_whoever_is_left() -> None:
    one = asked(stages=1, pipelines=4, redundancy="peer", every=10)
    market = trace("0 +a b c d", "600 -b", "1000 +e", "1400 -a c", "2000 +f g")
    found = {name: simulate(one, market, system=name) for name in SYSTEMS}
    ours = found[OURS]
    assert (ours.preemptions, ours.failovers, ours.restores, ours.lost_steps) == (3, 0, 0, 0)
    assert found[CHECKPOINT_RESTART].steps < ours.steps <= found[ORACLE].steps
    assert found[REROUTING].restores == 0  # it shares single microbatches out, and may be ahead
    assert found[PAPER].failovers == 0, "a pipeline of one stage has no neighbour to take it over"


def test_a_node_alone_goes_back_to_its_checkpoint() -> None:
    one = asked(stages=1, redundancy="off", every=10)
    ours = simulate(one, trace("0 +a", "900 -a", "1200 +b"))
    assert ours.restores == 1
    assert 0 < ours.lost_steps < 20
    with_none = simulate(asked(stages=1, redundancy="off"), trace("0 +a", "900 -a", "1200 +b"))
    assert with_none.steps < ours.steps


def test_nobody_beats_the_oracle_and_a_restart_costs_what_it_is_charged() -> None:
    one = asked(pipelines=2, every=10)
    market = trace(EIGHT, *LOSSES)
    found = {name: simulate(one, market, system=name) for name in SYSTEMS}
    best = found[ORACLE].steps
    assert all(found[name].steps <= best for name in (OURS, CHECKPOINT_RESTART, REROUTING))
    theirs = found[CHECKPOINT_RESTART]
    assert theirs.restores == 2
    assert theirs.lost_steps < 20
    stood_s = theirs.seconds - theirs.trained_s
    load_s = 1 + one.workload.state_bytes(range(2)) / STATE_BYTES_PER_S
    restarts = theirs.reconfigurations - 1  # the first is free
    assert stood_s == pytest.approx(restarts * (42 + load_s), abs=1)
    assert found[OURS].steps > theirs.steps


def test_rerouting_needs_a_peer_for_every_stage() -> None:
    one = asked(pipelines=2, every=10)
    peers = simulate(one, trace(EIGHT, "600 -b"), system=REROUTING)
    assert (peers.failovers, peers.restores) == (1, 0)
    none_left = simulate(one, trace(EIGHT, "600 -b f"), system=REROUTING)
    assert none_left.restores == 1


def test_losses_of_different_pipelines_at_once_are_rerouted_at_once() -> None:
    one = asked(pipelines=2, every=10)
    stood = []
    for lost in ("600 -b", "600 -b g", "600 -b c"):
        found = simulate(one, trace(EIGHT, lost), system=REROUTING)
        stood.append(found.seconds - found.trained_s)
    assert stood == pytest.approx([5.0, 5.0, 10.0])


def test_rerouting_does_not_begin_anew_for_nodes_that_it_has_no_use_for() -> None:
    one = asked(pipelines=1, standbys=4)
    found = simulate(one, trace("0 +a b c d", "600 +e f g h"), system=REROUTING)
    assert (found.reconfigurations, found.trained_s) == (1, pytest.approx(3600))


def test_nobody_beats_the_oracle_with_the_same_standbys() -> None:
    one = asked(pipelines=2, standbys=1, every=10)
    market = trace(f"{EIGHT} i", "600 -b", "700 +j", "1400 -c", "1500 +k", "2000 -d", "2100 +l")
    found = {name: simulate(one, market, system=name) for name in SYSTEMS}
    assert all(f.steps <= found[ORACLE].steps for n, f in found.items() if n != ON_DEMAND)


def test_nobody_beats_the_oracle_with_fewer_nodes_than_a_grid_has() -> None:
    one = asked(stages=4, every=10)
    market = trace("0 +a b c d", "600 -b", "900 -c", "1200 -d", "3000 +e f g")
    found = {name: simulate(one, market, system=name) for name in (OURS, ORACLE)}
    assert found[OURS].trained_s > 3500, "one node alone goes on"
    assert found[OURS].steps <= found[ORACLE].steps


def test_rivals_without_grids_to_choose_from_say_so() -> None:
    one = asked(grids=False)
    for system in (ORACLE, CHECKPOINT_RESTART, REROUTING, ON_DEMAND):
        with pytest.raises(CoreMisuse, match=r"policy\.grids is empty"):
            simulate(one, trace(EIGHT), system=system)


def test_a_restart_takes_what_is_asked_for_beside_boot_and_load() -> None:
    one, market = asked(pipelines=2, every=10), trace(EIGHT, "600 -b f")
    for system in (CHECKPOINT_RESTART, REROUTING):
        found = []
        for seconds in (0.0, 300.0):
            restart_s = {CHECKPOINT_RESTART: seconds, REROUTING: 0.0}
            found.append(simulate(replace(one, restart_s=restart_s), market, system=system))
        assert found[0].reconfigurations == found[1].reconfigurations == 2
        stood_s = [each.seconds - each.trained_s for each in found]
        assert stood_s[1] - stood_s[0] == pytest.approx(300, abs=0.1)
        assert stood_s[0] == pytest.approx(1 + 24e6 / STATE_BYTES_PER_S, abs=0.1), "the load"


def test_a_job_without_checkpoints_leaves_the_other_way_its_best_interval() -> None:
    market = trace(EIGHT, *LOSSES)
    best, own = (restart_terms(asked(pipelines=2, every=n), market) for n in (0, 500))
    assert own.checkpoint_every == 500
    ours = replace(asked(pipelines=2, every=500), interval_is_open=True)
    assert restart_terms(ours, market) == best, "what our plan chose is not the other way's"
    said = [
        terms_of_rivals({}, every=one.given_every)[CHECKPOINT_RESTART]
        for one in (ours, replace(ours, interval_is_open=False))
    ]
    assert "a checkpoint at its best interval" in said[0]
    assert "a checkpoint every 500 steps, as ours" in said[1]
    assert 1 <= best.checkpoint_every < 10
    assert restart_terms(asked(pipelines=2), trace(EIGHT)).checkpoint_every == 0
    lost = [
        simulate(asked(pipelines=2, every=n), market, system=CHECKPOINT_RESTART).lost_steps
        for n in (0, 500)
    ]
    assert lost[0] < 10 < lost[1]


def test_dear_requests_make_checkpoints_rarer_and_are_paid() -> None:
    one, market = asked(pipelines=2), trace(EIGHT, *LOSSES)
    origin = Origin(source="a test", seen="2026-11")
    prices = {n: AuxiliaryPrice(usd=0.0, unit=u, what=n, origin=origin) for n, u in NEEDED.items()}
    dear = prices | {"put": replace(prices["put"], usd=10.0)}
    found = [replace(one, store=kept) for kept in (prices, dear)]
    often, seldom = (restart_terms(each, market).checkpoint_every for each in found)
    assert often < seldom
    assert simulate(found[0], market, system=CHECKPOINT_RESTART).store_usd == 0
    theirs = simulate(found[1], market, system=CHECKPOINT_RESTART)
    written = (theirs.steps + theirs.lost_steps) / seldom
    requests = checkpoint_puts([1.0] * 4)
    assert theirs.store_usd == pytest.approx(written * requests * 10 / 1000, rel=0.05)
    assert simulate(found[1], market, system=ON_DEMAND).store_usd == 0


def test_nobody_restarts_for_a_larger_grid_that_is_lost_before_it_pays() -> None:
    """Half of the nodes are there; the rest comes and goes every ten minutes."""
    others = [f"{600 * n} {'+' if n % 2 else '-'}e f g h" for n in range(1, 6)]
    market = trace("0 +a b c d", *others)
    slow = replace(
        asked(pipelines=1, max_pipelines=2, every=10), restart_s={CHECKPOINT_RESTART: 900.0}
    )
    assert simulate(slow, market, system=CHECKPOINT_RESTART).reconfigurations == 1
    quick = replace(slow, restart_s={CHECKPOINT_RESTART: 1.0})
    assert simulate(quick, market, system=CHECKPOINT_RESTART).reconfigurations > 1


def _zoned(market: Trace, zones: str) -> Trace:
    """Each node in a zone by its place in the alphabet."""
    events = (replace(e, zone=zones[ord(e.node) % len(zones)]) for e in market.events)
    return replace(market, events=tuple(events))


def test_every_way_that_has_nodes_in_two_zones_pays_for_the_bytes_between_them() -> None:
    one, market = asked(pipelines=2, every=10), trace(EIGHT, *LOSSES)
    for system in SYSTEMS:
        apart = simulate(one, _zoned(market, "xy"), system=system)
        near = simulate(one, market, system=system)
        assert near.transfer_usd == 0
        assert (apart.transfer_usd > 0) is (system != ON_DEMAND)
        assert apart.usd - apart.transfer_usd == pytest.approx(near.usd, rel=0.05)


def test_steps_that_are_done_again_are_paid_for_both_times() -> None:
    one = replace(asked(every=10_000), last_step=300.0)
    whole = simulate(one, _zoned(trace("0 +a b c d"), "xy"), system=CHECKPOINT_RESTART)
    twice = simulate(
        one, _zoned(trace("0 +a b c d", "60 -d", "61 +e"), "xy"), system=CHECKPOINT_RESTART
    )
    assert twice.lost_steps > 0
    share = (300 + twice.lost_steps) / 300
    assert twice.transfer_usd >= whole.transfer_usd * share * 0.99


def test_rerouting_sends_its_state_from_another_zone_where_there_is_no_peer_nearer() -> None:
    """A pipeline in each zone: who takes a place of its own zone is sent the stage's state by the
    only other node that has it."""
    one, hours = asked(pipelines=2), ("600 -b", "1000 +i")
    market = trace(EIGHT, *hours)
    halves = (replace(e, zone="x" if e.node in "abcdi" else "y") for e in market.events)
    found = simulate(one, replace(market, events=tuple(halves)), system=REROUTING)
    assert found.hand_overs == 1
    assert found.transfer_usd * 1e9 / USD_PER_GB > one.workload.state_bytes(range(2, 4))


def _market(seed: int) -> Trace:
    return trace(EIGHT, f"{100 + seed} -b", f"{900 + seed} +i")


def test_seeds_are_the_same_on_any_number_of_processes() -> None:
    one = asked(pipelines=2, every=10)
    alone = list(simulate_seeds(one, _market, range(3), processes=1))
    several = list(simulate_seeds(one, _market, range(3), processes=2))
    assert alone == several
    assert alone[0][OURS].steps != 0
