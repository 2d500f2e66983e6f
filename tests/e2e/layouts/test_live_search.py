"""A node is killed by SIGKILL in the middle of a trial of a search: the run goes on, another search
begins on the fleet that is there then, and no bit is another one."""

from pathlib import Path

import pytest

from bamboo.coord.replay import verify_decisions
from bamboo.core.state import Phase, State
from bamboo.planner.sync.builders import build
from bamboo.planner.sync.trials import read_log
from testbed.calm import assert_calm
from testbed.cluster import cluster
from testbed.followed_search import Followed, case_of

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(300)]
STEPS = 120


def test_a_node_is_killed_in_the_middle_of_a_trial(tmp_path: Path) -> None:
    case, log = case_of(tmp_path, STEPS), tmp_path / "trials.jsonl"
    with cluster(case.job, sync=build("tree", case.facts, case.situation)) as run:
        followed = Followed(case, run, log)
        run.start(2)

        def on_trial(state: State) -> bool:
            tried = state.syncs and state.syncs[-1].why.startswith("a trial of")
            return bool(tried) and max(run.losses(), default=0) >= state.syncs[-1].from_step

        state = followed.until(on_trial)
        assert state.phase is Phase.RUNNING, run.report()
        chosen = len(state.syncs)
        run.kill("i-01.1")
        run.start_one()
        state = followed.until(lambda state: False)
        assert state.outcome == "done", run.report()
        assert state.syncs[-1].number > chosen, "the search goes on"
        assert_calm(run)
        assert verify_decisions(run.store).equal
    fleets = {trial.fleet for trial in read_log(log.read_text().splitlines()).trials}
    assert len(fleets) == 2
