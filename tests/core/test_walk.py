"""Who follows one preemption through the core opens few files, whatever happens on the way."""

from pathlib import Path

import pytest

from bamboo.core.machine import transition
from tests.core import transcript
from tests.walked import walked

MOST_FILES = 12
PREEMPTION = Path(__file__).parent / "scenarios" / "losses" / "one_preemption.txt"


def test_a_preemption_from_the_loss_to_the_new_layout_runs_functions_of_few_files(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    def noted(state, event, *, now_s, policy):  # type: ignore[no-untyped-def]
        asked.append((state, event, now_s, policy))
        return transition(state, event, now_s=now_s, policy=policy)

    monkeypatch.setattr(transcript, "transition", noted)
    transcript.play(PREEMPTION.read_text())
    kinds = [type(event).__name__ for _, event, _, _ in asked]
    since_loss = asked[kinds.index("PeerLost") :]
    assert {"CaughtUp", "ReplicaJoined", "Quiesced", "LayoutBuilt"} <= set(kinds)

    def decide() -> None:
        for state, event, now_s, policy in since_loss:
            transition(state, event, now_s=now_s, policy=policy)

    files = [name for name in walked(decide) if name.startswith("bamboo/core/")]
    assert "bamboo/core/failover.py" in files
    assert len(files) <= MOST_FILES, sorted(files)
