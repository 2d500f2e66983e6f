"""The paper's rules, each on a history of a few nodes."""

import math
from collections import Counter

import pytest

from bamboo.ids import NodeId, ZoneId
from bamboo.sim.boundaries import Boundaries
from bamboo.sim.kernel import Kernel
from bamboo.sim.other_ways.published import PaperRules, PaperTerms, Phase
from bamboo.sim.progress import Progress
from bamboo.sim.world import FAILOVER, RECONFIGURATION, RESTORE, Terms, World
from tests.sim.worlds import trace

pytestmark = pytest.mark.timeout(60)
STEP_S = {1: 10.0, 2: 6.0, 3: 4.0, 4: 3.0}
START_S, PAUSE_S = 30.0, 20.0


class Job:
    """Pipelines of four stages; nodes are single messages."""

    def __init__(
        self,
        *,
        stages: int = 4,
        pipelines: int = 2,
        as_simulated: bool = False,
        waiting_slows: bool = True,
    ) -> None:
        self.stages = stages
        self.kernel = Kernel()
        self.progress = Progress(self.kernel)
        self.counts: Counter[str] = Counter()
        self.rules = PaperRules(
            self.kernel,
            self.progress,
            Boundaries(self.kernel, self.progress),
            stages=stages,
            pipelines=pipelines,
            step_s=STEP_S.__getitem__,
            happened=lambda kind: self.counts.update([kind] if kind else []),
            terms=PaperTerms(
                start_s=START_S,
                reconfiguration_s=PAUSE_S,
                as_simulated=as_simulated,
                waiting_slows=waiting_slows,
            ),
        )

    def at(self, time_s: float, moves: str) -> None:
        """Nodes come (`+abc`) and go (`-b`) then; all before has happened."""
        self.until(time_s)
        for name in moves[1:]:
            if moves[0] == "+":
                self.rules.joined(NodeId(name), ZoneId(""))
            else:
                self.rules.lost(NodeId(name))

    def until(self, time_s: float) -> None:
        self.kernel.run(until_s=time_s)

    @property
    def places(self) -> list[str]:
        """Of each pipeline, a dot for a stage that the node before it does, or nobody."""
        own = {held[0]: node for node, held in self.rules.places.items()}
        return [
            "".join(own.get((number, stage), ".") for stage in range(self.stages))
            for number in range(self.rules.pipelines)
        ]

    @property
    def told(self) -> tuple[int, int, int]:
        """Failovers, reconfigurations, fatal losses."""
        return self.counts[FAILOVER], self.counts[RECONFIGURATION], self.counts[RESTORE]


def started(
    nodes: str = "abcdefgh",
    *,
    stages: int = 4,
    pipelines: int = 2,
    as_simulated: bool = False,
    waiting_slows: bool = True,
) -> Job:
    """At 30 s, where the first step begins."""
    job = Job(
        stages=stages, pipelines=pipelines, as_simulated=as_simulated, waiting_slows=waiting_slows
    )
    job.at(0.0, f"+{nodes}")
    job.until(START_S)
    return job


def test_a_start_gathers_for_30_s_and_fills_in_order_of_joining() -> None:
    job = Job()
    job.at(0.0, "+abc")
    assert job.rules.phase is Phase.GATHERING
    job.at(10.0, "+d")
    job.at(20.0, "+e")
    job.until(30.0)
    assert (job.places, job.rules.waiting, job.progress.step_s) == (["abcd"], 1, 10.0)
    job.until(50.0)
    assert job.progress.whole == 2


def test_a_gathering_of_too_few_ends_and_the_next_node_begins_another() -> None:
    job = Job()
    job.at(0.0, "+abc")
    job.until(100.0)
    assert job.rules.phase is Phase.IDLE
    job.at(100.0, "+d")
    job.until(129.0)
    assert job.rules.phase is Phase.GATHERING
    job.until(130.0)
    assert (job.rules.phase, job.places) == (Phase.TRAINING, ["abcd"])


def test_a_gathering_lasts_as_long_again_when_one_has_vanished() -> None:
    job = Job()
    job.at(0.0, "+abcde")
    job.at(20.0, "-e")
    job.until(59.0)
    assert job.rules.phase is Phase.GATHERING
    job.until(60.0)
    assert (job.rules.phase, job.told) == (Phase.TRAINING, (0, 0, 0))


def test_a_gathering_that_is_left_too_small_waits_for_nodes() -> None:
    job = Job()
    job.at(0.0, "+abcd")
    job.at(20.0, "-d")
    job.until(500.0)
    assert job.rules.phase is Phase.IDLE
    job.at(500.0, "+e")
    job.until(530.0)
    assert (job.places, job.told) == (["abce"], (0, 0, 0))


def test_a_failover_has_no_pause_and_the_step_in_hand_grows_by_half_its_rest() -> None:
    job = started()
    job.at(32.0, "-c")
    assert job.places == ["ab.d", "efgh"]
    # 4 of 6 s were left: they take 6, and no pause comes before the step's end.
    assert job.progress.reaches_at_s(1) == pytest.approx(38.0)
    assert job.told == (1, 0, 0)


def test_what_a_loss_costs_does_not_add_up() -> None:
    job = started("abcdefghi", pipelines=2)
    job.at(32.0, "-i")
    # 4 of 6 s were left: they take 6, whoever is lost then.
    job.at(33.0, "+i")
    job.at(34.0, "-i")
    assert job.progress.reaches_at_s(1) == pytest.approx(38.0)
    job.until(38.0)
    assert (job.progress.whole, job.rules.phase) == (1, Phase.TRAINING)
    assert job.progress.step_s == pytest.approx(9.0)


def test_the_loss_of_a_node_that_was_not_yet_up_makes_steps_slow_too() -> None:
    job = started()
    job.until(32.0)
    job.rules.lost_before_up()
    assert (job.progress.step_s, job.told) == (pytest.approx(9.0), (0, 0, 0))


def test_steps_are_slow_until_the_next_reconfiguration_even_for_one_who_waited() -> None:
    job = started("abcdefghi")
    job.at(30.0, "-i")
    job.until(500.0)
    assert (job.progress.step_s, job.told) == (pytest.approx(9.0), (0, 0, 0))
    job.at(500.0, "-h")
    job.until(600.0)
    assert (job.places, job.progress.step_s, job.told) == (["abcd"], 10.0, (1, 1, 0))


def test_a_reconfiguration_pauses_at_the_end_of_the_step() -> None:
    job = started("abcdefghi")
    job.at(32.0, "-f")
    job.until(38.0)
    assert (job.rules.phase, job.progress.whole) == (Phase.PAUSED, 1)
    job.until(57.9)
    assert (job.progress.whole, job.progress.step_s) == (1, math.inf)
    job.until(64.0)
    # In the order in which they joined, so that who comes after the lost one moves up.
    assert (job.places, job.progress.step_s) == (["abcd", "eghi"], 6.0)
    assert job.progress.whole == 2


def test_one_pair_of_more_than_forty_active_nodes_waits_for_a_node() -> None:
    names = "".join(map(chr, range(ord("A"), ord("A") + 42)))
    job = started(names, stages=14, pipelines=3)
    job.at(30.0, f"-{names[5]}")
    job.until(500.0)
    # 2 of 41: not more than 5 %, and nobody waits.
    assert (job.rules.pairs, job.rules.active, job.told) == (1, 41, (1, 0, 0))
    assert job.progress.step_s == pytest.approx(6.0)
    job.at(500.0, "+z")
    job.until(530.0)
    assert (job.rules.pairs, job.told) == (0, (1, 1, 0))
    assert job.progress.step_s == 4.0


def test_two_pairs_of_forty_are_more_than_5_percent() -> None:
    names = "".join(map(chr, range(ord("A"), ord("A") + 42)))
    job = started(names, stages=14, pipelines=3)
    job.at(30.0, f"-{names[5]}{names[20]}")
    job.until(60.0)
    assert (len(job.places), job.told) == (2, (2, 1, 0))


def test_a_further_pipeline_is_manned_as_soon_as_it_fits() -> None:
    job = started("abcd")
    job.at(31.0, "+efg")
    job.until(100.0)
    assert (job.places, job.told) == (["abcd"], (0, 0, 0))
    job.at(101.0, "+h")
    job.until(130.0)
    assert (job.places, job.told) == (["abcd", "efgh"], (0, 1, 0))
    job.at(131.0, "+ijklm")
    job.until(300.0)
    assert (job.places, job.told) == (["abcd", "efgh"], (0, 1, 0))


@pytest.mark.parametrize(
    ("second", "why"), [("b", "has two stages"), ("d", "its predecessor has two")]
)
def test_fatal_is_the_loss_of_a_neighbour_of_an_empty_place(second: str, why: str) -> None:
    job = started()
    job.at(37.0, "-c")
    job.at(37.0, f"-{second}")
    assert (job.rules.phase, job.told) == (Phase.GATHERING, (1, 0, 1)), why
    job.until(66.9)
    # The step that was done stays; what was done of the next is gone.
    assert job.progress.steps == 1.0
    job.until(67.0)
    assert job.rules.phase is Phase.TRAINING
    assert (len(job.places), job.progress.step_s) == (1, 10.0)


def test_the_first_stage_is_the_last_ones_second() -> None:
    job = started()
    job.at(31.0, "-a")
    job.at(31.0, "-d")
    assert job.told == (1, 0, 1)


def test_losses_apart_and_in_two_pipelines_are_not_fatal() -> None:
    job = started()
    job.at(31.0, "-aceg")
    assert (job.places, job.told) == ([".b.d", ".f.h"], (4, 0, 0))


def test_a_pipeline_of_one_stage_has_nobody_to_take_over() -> None:
    job = started("ab", stages=1, pipelines=2)
    job.at(31.0, "-a")
    assert job.told == (0, 0, 1)


def test_a_loss_in_the_pause_is_a_failover_of_the_old_places_and_makes_it_longer() -> None:
    job = started("abcdefghi")
    job.at(32.0, "-f")
    job.at(40.0, "-i")
    assert (job.rules.phase, job.told) == (Phase.PAUSED, (1, 1, 0)), "who waited had no place"
    job.at(41.0, "-h")
    assert job.told == (2, 1, 0)
    job.until(77.9)
    assert (job.rules.phase, job.progress.step_s) == (Phase.PAUSED, math.inf)
    job.until(78.0)
    assert (job.places, job.rules.waiting, job.progress.step_s) == (["abcd"], 2, 10.0)


def test_a_fatal_loss_in_the_pause_ends_it() -> None:
    job = started("abcdefghi")
    job.at(32.0, "-f")
    job.at(40.0, "-ig")
    job.until(69.0)
    assert (job.rules.phase, job.told) == (Phase.GATHERING, (1, 1, 1))
    job.until(70.0)
    assert job.places == ["abcd"]


def test_the_old_places_hold_while_all_gather_so_that_a_second_loss_may_be_fatal_too() -> None:
    job = started()
    job.at(37.0, "-cb")
    assert job.told == (1, 0, 1)
    job.at(50.0, "-f")
    job.at(51.0, "-e")
    assert job.told == (2, 0, 2)
    job.until(80.9)
    assert job.rules.phase is Phase.GATHERING
    job.until(81.0)
    assert job.places == ["adgh"]


def test_behind_the_hole_of_a_fatal_loss_is_nobody_who_takes_over() -> None:
    job = started()
    job.at(37.0, "-cb")
    job.at(40.0, "-d")
    assert (job.rules.phase, job.told) == (Phase.GATHERING, (1, 0, 1))


def test_the_loss_of_a_node_that_waited_slows_nobody_if_the_terms_say_so() -> None:
    job = started("abcdefghi", waiting_slows=False)
    job.at(32.0, "-i")
    job.rules.lost_before_up()
    assert job.progress.step_s == 6.0
    job.at(33.0, "-h")
    assert job.progress.step_s == 9.0


def test_too_few_for_one_pipeline_stand_after_the_pause() -> None:
    job = started("abcd")
    job.at(35.0, "-b")
    job.until(42.4)
    assert job.told == (1, 0, 0)
    job.until(62.4)
    assert job.rules.phase is Phase.PAUSED
    job.until(1000.0)
    assert (job.rules.phase, job.progress.steps, job.told) == (Phase.IDLE, 1.0, (1, 1, 0))


def test_as_simulated_an_earlier_time_ends_a_gathering_and_the_later_one_the_training() -> None:
    job = started("abcdefghi", as_simulated=True)
    job.at(32.0, "-f")
    job.at(40.0, "-g")
    assert (job.rules.phase, job.told) == (Phase.GATHERING, (1, 1, 1))
    job.until(58.0)
    assert (job.rules.phase, job.places) == (Phase.TRAINING, ["abcd"])
    job.until(70.0)
    assert (job.rules.phase, job.progress.steps, job.progress.step_s) == (
        Phase.IDLE,
        2.0,
        math.inf,
    )
    # They have their places still, but who comes before a first stage is not found.
    job.at(75.0, "-a")
    assert (job.rules.phase, job.told) == (Phase.IDLE, (1, 1, 1))
    job.at(76.0, "-c")
    assert (job.rules.phase, job.told) == (Phase.IDLE, (2, 1, 1))
    job.at(80.0, "+jkl")
    job.until(110.0)
    assert (job.rules.phase, job.places) == (Phase.TRAINING, ["bdeh", "ijkl"])


def test_as_simulated_steps_go_on_while_all_gather_after_a_fatal_loss() -> None:
    names = "".join(map(chr, range(ord("A"), ord("A") + 56)))
    job = started(names, stages=14, pipelines=4, as_simulated=True)
    job.at(31.0, f"-{names[5]}")
    job.at(31.0, f"-{names[4]}")
    assert (job.rules.phase, job.told) == (Phase.GATHERING, (1, 0, 1))
    job.until(60.9)
    # 3 s a step, from the first loss on 4.5.
    assert job.progress.whole == 1 + int((60.9 - 31.0 - 2 * 1.5) // 4.5)
    job.until(61.0)
    assert (len(job.places), job.progress.step_s) == (3, 4.0)
    assert job.progress.steps == job.progress.whole


@pytest.mark.parametrize("as_simulated", [True, False])
def test_as_simulated_a_lost_node_that_waited_still_counts_at_the_end_of_a_step(
    as_simulated: bool,
) -> None:
    names = "".join(map(chr, range(ord("A"), ord("A") + 43)))
    job = started(names, stages=14, pipelines=3, as_simulated=as_simulated)
    job.at(31.0, f"-{names[42]}{names[5]}")
    job.until(90.0)
    # One pair of 41: who would take the place is gone.
    assert job.told == (1, int(as_simulated), 0)
    assert len(job.places) == (2 if as_simulated else 3)


def test_as_simulated_a_lost_node_that_waited_still_counts() -> None:
    job = started("abcdefghijk", as_simulated=True)
    assert job.rules.waiting == 3
    job.at(31.0, "-k")
    assert job.rules.waiting == 3
    job.at(35.0, "+l")
    job.until(100.0)
    assert (job.told, job.rules.waiting) == ((0, 0, 0), 4), "no more than two pipelines are allowed"


def test_the_rules_play_in_a_world() -> None:
    world = World(trace=trace("0 +a b c d e", "100 -b"), terms=Terms(boot_s=0.0), horizon_s=300.0)
    rules = PaperRules.in_world(world, stages=4, pipelines=1, step_s=STEP_S.__getitem__, standbys=1)
    world.play(rules)
    assert (world.counts[FAILOVER], world.counts[RECONFIGURATION]) == (1, 1)
    # 30 s to start, 7 steps to the loss, one of 10 s of which none was done, a pause of 20 s.
    assert world.progress.whole == 7 + 1 + (300 - 115 - 20) // 10
