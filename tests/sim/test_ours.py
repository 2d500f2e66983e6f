"""The production core in small simulated worlds: what a loss, a notice or a return comes to."""

from dataclasses import replace

import pytest

from bamboo.planner.risks.zones import USD_PER_GB
from bamboo.sim.members import Pauses
from bamboo.sim.run import Figures, simulate
from bamboo.sim.world import RECONFIGURATION, Terms
from tests.hash_orders import said_whatever_the_hash
from tests.sim.worlds import asked, calm_step_s, trace

FOUR = "0 +a b c d"


def said(found: Figures) -> str:
    return "\n".join(moment.said for moment in found.moments)


def test_a_calm_hour_is_as_many_steps_as_fit() -> None:
    one = asked()
    found = simulate(one, trace(FOUR))
    assert found.steps == int(3600 / calm_step_s(one))
    assert (found.mean_nodes, found.usd, found.preemptions) == (4, 4.0, 0)
    assert found.trained_s == pytest.approx(3600)
    assert found.samples_per_usd == pytest.approx(found.steps * 16 / 4.0)


def test_it_ends_with_the_last_step() -> None:
    one = asked(last_step=100)
    found = simulate(one, trace(FOUR))
    assert found.steps == 100
    assert found.seconds == pytest.approx(100 * calm_step_s(one))
    assert "100 steps" in found.ended


def test_evaluations_take_their_time_and_end_no_run() -> None:
    """Those of before a restore are not decided on again."""
    one = asked(every=10)
    work = replace(one.workload, shape=replace(one.workload.shape, evaluated=16), eval_every=10)
    policy = replace(one.policy, eval_every=10, eval_patience=1, eval_higher=True)
    evaluated = replace(one, workload=work, policy=policy)
    lost = (FOUR, "600 -b c", "700 +e f")
    found, without = simulate(evaluated, trace(*lost)), simulate(one, trace(*lost))
    assert found.restores == without.restores == 1
    assert found.steps < without.steps
    calm_s = 3600 / (simulate(evaluated, trace(FOUR)).steps + 1)
    assert calm_s == pytest.approx(calm_step_s(one) + (8 * 0.03 + 15 * 0.06) / 10, rel=0.01)


def test_a_loss_is_taken_over_inside_the_step_and_nothing_is_lost() -> None:
    one = asked()
    found = simulate(one, trace(FOUR, "600 -b", "700 +e"))
    assert (found.failovers, found.restores, found.lost_steps) == (1, 0, 0)
    assert "its shadow" in said(found)
    calm = simulate(one, trace(FOUR))
    slower = calm.steps - found.steps
    assert 10 < slower < 0.1 * calm.steps, "a merged node for a while, then full strength"


@pytest.mark.parametrize("mode", ["gap", "eager", "full"])
def test_what_the_shadow_has_done_ahead_is_not_done_again(mode: str) -> None:
    stood_s = {}
    for one in ("stash", mode):
        job = replace(asked(redundancy=one, patience_s=1e6), pauses=Pauses(detect_s=0.0))
        found = simulate(job, trace(FOUR, "601 -b", "900 +e"))
        assert found.failovers == 1
        into = 601.0 % calm_step_s(job) / calm_step_s(job)
        stood_s[one] = (found.seconds - found.trained_s) / into
    assert 0 < stood_s[mode] < 0.95 * stood_s["stash"]


@pytest.mark.parametrize("together", [False, True], ids=["apart", "together"])
def test_losses_of_different_pipelines_at_once_delay_as_the_worse_of_them(together: bool) -> None:
    """With two pipelines alike: no longer than the loss of one, where each has a loss; but for
    where in its step of 1.4 s a loss falls."""
    one = replace(asked(pipelines=2, patience_s=1e6), pauses=Pauses(detect_s=20.0))
    at_s = "600" if together else "1200"
    stood = []
    for lines in ((), (f"{at_s} -f",)):
        found = simulate(one, trace("0 +a b c d e f g h", "600 -b", *lines))
        assert found.failovers == 1 + len(lines)
        stood.append(found.seconds - found.trained_s)
    alone_s, both_s = stood
    assert alone_s > 20
    assert both_s == pytest.approx(alone_s if together else 2 * alone_s, abs=0.5)


def test_a_merged_node_without_shadows_gives_a_stage_to_who_comes() -> None:
    """Patience ended with one node for both stages; the one that comes then is not idle."""
    one = asked(stages=2, redundancy="off", every=10, patience_s=30.0)
    found = simulate(one, trace("0 +a b", "600 -b", "1200 +c"))
    assert "there are nodes for every stage of 1 x 2" in said(found)
    assert (found.restores, found.reconfigurations) == (1, 2)
    assert found.steps > 160 + (3600 - 1300) / calm_step_s(one), "two nodes from then on"
    assert found.lost_steps < 10, "by the restore, and nothing by the newcomer"


def test_a_standby_takes_the_slot_sooner_than_a_replacement() -> None:
    market = trace("0 +a b c d e", "600 -b", "1500 +f")
    with_standby = simulate(asked(standbys=1), market)
    without = simulate(asked(grids=False), trace(FOUR, "600 -b", "1500 +f"))
    assert with_standby.steps > without.steps
    assert with_standby.hand_overs == 1


def test_two_neighbours_at_once_are_restored_from_the_newest_complete_checkpoint() -> None:
    one = asked(every=10)
    found = simulate(one, trace(FOUR, "600 -b c", "900 +e f"))
    assert (found.restores, found.preemptions) == (1, 2)
    assert 0 <= found.lost_steps < 20
    assert "restored from the checkpoint" in said(found)


@pytest.mark.parametrize(("part", "again"), [(0.5, 10), (0.85, 10), (0.95, 0)])
def test_a_checkpoint_that_is_still_being_written_does_not_count(part: float, again: int) -> None:
    """2 s of writing are 0.91 steps here, and losses at one instant hurry no shard."""
    one = asked(every=10)
    lost_s = (300 + part) * calm_step_s(one)
    found = simulate(one, trace(FOUR, f"{lost_s} -b c", "2500 +e f"))
    assert (found.restores, found.lost_steps) == (1, again)


def test_with_a_second_pipeline_they_are_not() -> None:
    one = asked(pipelines=2, every=10)
    eight = "0 +a b c d e f g h"
    found = simulate(one, trace(eight, "600 -b c", "900 +i j"))
    assert (found.restores, found.lost_steps) == (0, 0)
    assert found.reconfigurations >= 1


def test_without_checkpoints_they_end_the_run() -> None:
    found = simulate(asked(), trace(FOUR, "600 -b c"))
    assert "no live node holds" in found.ended or "no checkpoint" in found.ended
    assert found.seconds < 700


def test_an_end_for_want_of_nodes_names_no_process_that_is_not_there() -> None:
    found = simulate(asked(every=10, park_s=60.0), trace(FOUR, "600 -a b c d"))
    assert "cluster.park_s = 60 s" in found.ended
    assert found.moments
    assert not any("launcher" in said for said in (found.ended, *(m.said for m in found.moments)))


def test_a_notice_is_a_hand_over_and_nothing_is_done_again() -> None:
    one = asked(standbys=1, terms=Terms(notice_s=120.0))
    found = simulate(one, trace("0 +a b c d e", "600 -b", "700 +f"))
    assert found.failovers == 0
    assert found.hand_overs >= 1
    assert found.preemptions == 1


def test_nodes_for_a_second_pipeline_and_fewer_than_one() -> None:
    one = asked(max_pipelines=2, every=50)
    market = trace(FOUR, "300 +e f g h", "1200 -e f g h a", "1201 -b", "2400 +i j")
    found = simulate(one, market)
    grids = [m.said for m in found.moments if m.kind == RECONFIGURATION]
    assert any("2 x 4" in words for words in grids)
    assert any("1 x 2" in words or "1 x 3" in words for words in grids)
    assert found.ended == ""


def test_everything_gone_it_waits_and_goes_on() -> None:
    one = asked(every=5)
    found = simulate(one, trace(FOUR, "600 -a b c d", "1200 +e f g h"))
    assert found.restores == 1
    assert found.trained_s < 3600 - 600
    assert found.ended == ""
    parked = simulate(asked(every=5, park_s=100.0), trace(FOUR, "600 -a b c d", "1200 +e f g h"))
    assert "cluster.park_s" in parked.ended
    assert parked.seconds == pytest.approx(700, abs=10)


def test_the_last_node_of_all_leaves_its_newest_checkpoint() -> None:
    """Nobody is left then who could tell of it, and it was there before."""
    one = asked(stages=2, redundancy="off", every=10)
    found = simulate(one, trace("0 +a b", "600 -a", "1500 -b", "1600 +c d"))
    assert found.restores == 2
    assert found.lost_steps < 2 * 20


def test_who_comes_while_a_layout_is_prepared_has_a_place_in_it() -> None:
    """Of three nodes and a fourth a layout would be made; before that has what it needs there are
    enough for yet another one, which all stop for once."""
    market = trace("0 +a b c d e f g h", "1000 -a f b d h", "1070 +i", "1075 +j", "1076 +k")
    one = asked(pipelines=2, max_pipelines=2, every=100, redundancy="stash", horizon_s=4000.0)
    found = simulate(one, market)
    assert (found.reconfigurations, found.lost_steps) == (2, 0)
    assert found.trained_s > 4000.0 - 5.0, "nobody stands while it is sent"
    ends = [m for m in found.moments if m.kind == RECONFIGURATION]
    assert ends[1].said.endswith("there are nodes for 2 x 3; nothing was sent, 263.2 MiB before")


def test_the_same_is_simulated_twice() -> None:
    market = trace("0 +a b c d e", "100 -b", "150 +f", "300 -c d", "500 +g h")
    one = asked(max_pipelines=2, standbys=1, every=7)
    assert simulate(one, market) == simulate(one, market)


AGAIN = """
from bamboo.sim.run import simulate
from tests.sim.worlds import asked, trace
market = trace("0 +a b c d e f g h i", "100 -b d", "150 +j", "300 -c e f", "500 +k l m n")
print(simulate(asked(pipelines=2, standbys=1, every=7), market))
"""


def test_the_same_is_simulated_whatever_the_order_of_sets() -> None:
    assert len(said_whatever_the_hash(AGAIN)) > 1000, "a whole run, and each time the same"


def test_a_node_that_the_run_cannot_use_is_given_back_after_a_while() -> None:
    """Seven of eight nodes: two pipelines of three stages have no use for the seventh."""
    market = trace("0 +a b c d e f g h", "600 -a")
    kept = simulate(asked(pipelines=2), market)
    given = simulate(asked(pipelines=2, surplus_s=100.0), market)
    assert kept.mean_nodes == pytest.approx((600 * 8 + 3000 * 7) / 3600)
    assert given.mean_nodes == pytest.approx((600 * 8 + 130 * 7 + 2870 * 6) / 3600, abs=0.02)
    assert given.preemptions == 1
    assert given.steps == pytest.approx(kept.steps, rel=0.01)


def test_bytes_between_zones_are_paid_for() -> None:
    near = trace("0 +a b c d")
    events = [replace(e, zone="xy"[n % 2]) for n, e in enumerate(near.events)]
    found = simulate(asked(), replace(near, events=tuple(events)))
    steps_usd = found.steps * USD_PER_GB / 1e9
    # Neighbours within a zone but for the two that meet; each boundary there and back.
    assert found.transfer_usd >= steps_usd * 2 * 8 * 1000
    assert found.usd == pytest.approx(4.0 + found.transfer_usd)
    assert simulate(asked(), near).transfer_usd == 0


def test_state_that_is_copied_between_zones_is_paid_for() -> None:
    """A node that comes from another zone is sent the stages that it is to own and to shadow; the
    run ends before they have come, and before any step sends anything there."""
    near = trace(FOUR, "600 -b", "700 +e")
    events = [replace(e, zone="y" if e.node == "e" else "x") for e in near.events]
    one = asked(horizon_s=747.5)
    found = simulate(one, replace(near, events=tuple(events)))
    assert found.transfer_usd * 1e9 / USD_PER_GB == pytest.approx(
        2 * one.workload.state_bytes(range(2))
    )


def test_the_dollars_of_the_picture_end_as_the_bill_and_never_fall() -> None:
    near = trace(FOUR, "600 -b", "700 +e")
    events = [replace(e, zone="xy"[n % 2]) for n, e in enumerate(near.events)]
    one = replace(asked(), free_first_hour=True)
    found = simulate(one, replace(near, events=tuple(events)))
    assert found.transfer_usd > 0
    paid = [usd for _, usd in found.dollars]
    assert paid[-1] == pytest.approx(found.usd)
    assert paid == sorted(paid)
