"""The bill of a run's fleet: what its journal says, also where it is damaged; whose a kill is."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bamboo.billing.money import rented_in
from bamboo.errors import InputError
from bamboo.ids import InstanceId
from tests.sites.run_fleets import Parts, journal


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


def test_the_journal_is_the_bill(parts: Parts) -> None:
    def append(path: Path) -> Callable[..., None]:
        def write(**record: Any) -> None:
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")

        return write

    cloud = append(parts.journal)
    cloud(kind="start", t=10.0, instance="i-1", zone="a", instance_type="g4dn.xlarge",
          market="spot", usd_per_hour=0.2)  # fmt: skip
    cloud(kind="start", t=11.0, instance="i-2", zone="a", instance_type="g4dn.xlarge",
          market="spot", usd_per_hour=None)  # fmt: skip
    assert [(r.instance, r.usd_per_hour, r.ended_at_s) for r in parts.made.rented()] == [
        ("i-1", 0.2, None), ("i-2", 0.526, None),
    ]  # fmt: skip
    cloud(kind="agent-end", t=12.0, instance="i-2", status=0)
    cloud(kind="end", t=20.0, instance="i-1", cause="interrupted")
    cloud(kind="end", t=21.0, instance="i-2", cause="terminated")
    assert [(r.ended_at_s, r.interrupted) for r in parts.made.rented()] == [
        (20.0, True), (21.0, False),
    ]  # fmt: skip
    assert parts.notes == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"kind":"end","t":20.0,"inst', "'t"),
        ('{"kind":"start","t":"now","instance":"i-1"}', "could not convert"),
        ("[" * 100_000, "recursion"),
        ('{"kind":"end","t":22.0,"instance":"i-other","cause":"end"}', "before its start"),
        ('{"kind":"end","t":5.0,"instance":"i-2","cause":"end"}', "before its start"),
    ],
)
def test_a_launcher_goes_on_with_what_can_be_read_of_a_damaged_bill(
    parts: Parts, line: str, said: str
) -> None:
    """That bill is no reason to end a run, and none is written down from it."""
    journal(parts, {InstanceId("i-1"): 10.0, InstanceId("i-2"): 11.0})
    lines = parts.journal.read_text().splitlines()
    parts.journal.write_text("\n".join([lines[0], line, lines[1]]) + "\n")
    for _ in range(2):
        assert "i-1" in [one.instance for one in parts.made.rented()]
    assert len(parts.notes) == 1
    assert "the bill lacks what cannot be read" in parts.notes[0]
    with pytest.raises(InputError, match=r"cloud\.jsonl: a record lacks or garbles .*original"):
        rented_in(
            parts.journal, on_demand_usd_per_hour={"g4dn.xlarge": 0.526}, free_first_hour=False
        )


def test_kill_stamps_by_instance_or_by_node(parts: Parts) -> None:
    assert parts.made.kill_stamps_s() == {}
    parts.kills.write_text(
        '{"t_monotonic_ns":1500000000,"instance":"i-1"}\n'
        '{"t_monotonic_ns":2500000000,"node":"i-2.0"}\n'
    )
    assert parts.made.kill_stamps_s() == {"i-1": 1.5, "i-2": 2.5}
