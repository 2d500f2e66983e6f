"""Every format becomes the same value; what cannot be meant is refused by file, line and reason."""

import json
from pathlib import Path

import pytest

from bamboo.errors import InputError
from bamboo.sim.market.trace import Trace, read_trace

pytestmark = pytest.mark.timeout(60)
SHARED = Path(__file__).parents[3] / "shared" / "traces"


def read(folder: Path, text: str, name: str = "t.csv") -> Trace:
    path = folder / name
    path.write_bytes(text.encode())
    return read_trace(path)


def told(trace: Trace) -> list[str]:
    return [f"{e.at_s:g} {'+' if e.comes else '-'}{e.node}" for e in trace.events]


def test_events(tmp_path: Path) -> None:
    trace = read(tmp_path, "0,add,a\r\n0,add,b\r\n1500,remove,a\r\n2000,add,a\r\n")
    assert told(trace) == ["0 +a", "0 +b", "1.5 -a", "2 +a"]
    assert (trace.length_s, trace.preemptions) == (2.0, 1)


def test_zones_and_the_end(tmp_path: Path) -> None:
    trace = read(tmp_path, "0,add,a,east\n0,add,b\n5,remove,a\n6,remove,b\n7,add,a,west\n9,end\n")
    assert [event.zone for event in trace.events] == ["east", "", "east", "", "west"]
    assert trace.length_s == 0.009
    named = read(tmp_path, "0,add,a,east\n5,remove,a,east\n")
    assert [event.zone for event in named.events] == ["east", "east"]


def test_alive_counts(tmp_path: Path) -> None:
    lines = (
        "2021-12-10, 23:59:00, 2\n2021-12-11, 00:00:00, 1\n\n"
        "2021-12-10, 23:59:30, 2\n2021-12-11, 00:01:00, 0\n"
    )
    trace = read(tmp_path, lines)
    assert told(trace) == [
        "0 +node1",
        "0 +node2",
        "60 -node2",
        "60 +node3",
        "120 -node3",
        "120 -node1",
    ]
    assert trace.length_s == 120.0


def test_a_byte_order_mark_is_no_part_of_a_trace(tmp_path: Path) -> None:
    assert told(read(tmp_path, "\ufeff0,add,a\r\n5000,remove,a\r\n")) == ["0 +a", "5 -a"]
    series = '\ufeff{"metadata": {"gap_seconds": 1}, "data": [1.0]}'
    assert told(read(tmp_path, series)) == ["0 +node1"]


def test_availability(tmp_path: Path) -> None:
    series = {"metadata": {"gap_seconds": 300}, "data": [1, 3, 3, 0]}
    trace = read(tmp_path, json.dumps(series), "t.json")
    assert told(trace)[:3] == ["0 +node1", "300 +node2", "300 +node3"]
    assert trace.preemptions == 3
    assert trace.length_s == 900.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("0,add,a\n0,add\n", "line 2: '0,add': write `ms,add|remove,node[,zone]`"),
        ("0,add,a,east\n1,remove,a,west\n", "line 2: '1,remove,a,west': a came in zone 'east'"),
        ("0,add,a\n1,remove,a,west\n", "a came in zone 'unnamed'"),
        ("0,add,a,east,1\n", "line 1: '0,add,a,east,1': has 5 columns, and no header says"),
        ("0,add,a\n1,add,b,east,1\n", "line 2: '1,add,b,east,1': has 5 columns"),
        ("0,add,a\n5,end\n6,remove,a\n", "line 3: '6,remove,a': the line before is the end"),
        ("5,add,a\n4,end\n", "line 2: '4,end': it goes back in time"),
        ("5,add,a\nx,end\n", "the time is no whole milliseconds"),
        ("0,add,a\n1,drop,a\n", "line 2: '1,drop,a': 'drop' is neither add nor remove; write `ms"),
        ("0,add,a\nx,remove,a\n", "line 2: 'x,remove,a': the time is no whole milliseconds"),
        ("5,add,a\n1,remove,a\n", "line 2: '1,remove,a': it goes back in time"),
        ("-5,add,a\n", "line 1: '-5,add,a': it goes back in time"),
        ("0,add,a\n\n1,add,a\n", "line 3: '1,add,a': a is there already"),
        ("0,add,a\n1,remove,b\n", "line 2: '1,remove,b': b is not there"),
        ("0,add,\x1b[2J\n0,add,\x1b[2J\n", ": '\\x1b[2J' is there already"),
        ("2020-01-01, 00:00:00+05:00, 3\n", "times have no offset here; take one time zone"),
        (
            "hello\n",
            "line 1: 'hello': is a line of no known trace; give `ms,add|remove,node[,zone]`",
        ),
        ("# A title\n", "`YYYY-MM-DD, HH:MM:SS, alive` lines, or JSON {"),
        ("2021-12-10, 13:07:45, many\n", "line 1: '2021-12-10, 13:07:45, many': write"),
        ("2021-12-10, 13:07:45, -1\n", "fewer than no nodes"),
        ("2021-12-10, 13:07:45, 3\n2021-12-10, 13:00:00, 2\n", "line 2"),
        ("{", "is no availability series"),
        ('{"data": [1]}', "is no availability series"),
        ('{"metadata": {"gap_seconds": 0}, "data": [1]}', "make no series"),
        ('{"metadata": {"gap_seconds": 5}, "data": []}', "make no series"),
        ('{"metadata": {"gap_seconds": 5}, "data": [-1]}', "make no series"),
        (
            "2020-01-01, 00:00, 99999999999\n",
            "line 1: '2020-01-01, 00:00, 99999999999': at most 100,000 nodes may be alive",
        ),
        (
            '{"metadata":{"gap_seconds":60},"data":[1,99999999999,1]}',
            "data[1] = 99999999999: at most 100,000 nodes may be alive",
        ),
        ('{"metadata": {"gap_seconds": 1e300}, "data": [1, 2]}', "correct the gap"),
        ('{"metadata": {"gap_seconds": 5}, "data": [1e400]}', "is no availability series"),
        ('{"metadata": {"gap_seconds": 5}, "data": [4, 3.5]}', "3.5 is no whole number of nodes"),
        ('{"metadata": {"gap_seconds": 5}, "data": [4, "3"]}', "'3' is no number"),
        ('{"metadata": {"gap_seconds": 5}, "data": [4, true]}', "True is no number"),
        ('{"metadata": {"gap_seconds": 5}, "data": "43"}', "'43' is no list"),
        ('{"metadata": {"gap_seconds": 5}, "data": {"4": 3}}', "{'4': 3} is no list"),
        ('{"metadata": {"gap_seconds": "5"}, "data": [4]}', "'5' is no number"),
        ('{"metadata": {"gap_seconds": 1e-4}, "data": [4]}', "the gap must be 0.001 or above"),
        ('{"a":' + "[" * 100_000, "is no availability series"),
        ("2020-01-01, 00:00, 1\n9999-01-01, 00:00, 2\n", "line 2: '9999-01-01, 00:00, 2': it is"),
        ("0,add,a\n" + "9" * 400 + ",remove,a\n", "line 2: "),
        ("0,add,a\n" + "9" * 18 + ",remove,a\n", "876,000 h after the begin; correct the time"),
    ],
)
def test_what_cannot_be_meant_is_refused(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read(tmp_path, text)
    assert says in str(caught.value)
    assert "t.csv" in str(caught.value)


def test_counts_that_come_to_too_many_events_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bamboo.sim.market.trace.MOST_EVENTS", 1000)
    series = json.dumps({"metadata": {"gap_seconds": 1}, "data": [100, 0] * 1000})
    with pytest.raises(InputError, match=r"data\[10\] = 100: more than 1,000 nodes have come and"):
        read(tmp_path, series)


def test_a_file_that_is_not_there_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="absent: cannot be read as a trace: No such file or di"):
        read_trace(tmp_path / "absent")
    (tmp_path / "odd").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read as a trace"):
        read_trace(tmp_path / "odd")


@pytest.mark.parametrize(
    ("name", "preemptions", "hours"), [("bamboo-p3.csv", 167, 11.36), ("bamboo-gcp-v100.txt", 0, 0)]
)
def test_recorded_traces(name: str, preemptions: int, hours: float) -> None:
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"the recorded trace {name} is not at hand")
    trace = read_trace(path)
    assert trace.preemptions >= preemptions
    assert trace.length_s / 3600 >= hours
    if name.endswith(".csv"):
        assert trace.preemptions == preemptions


def test_who_goes_by_counts_is_not_who_came_first(tmp_path: Path) -> None:
    # Whoever rents the oldest few of many would otherwise lose his own in each instant.
    lines = [f"2021-12-10, {h:02}:{m:02}:00, {9 + m % 2}" for h in range(4) for m in range(60)]
    trace = read(tmp_path, "\n".join(lines))
    here, places = list[str](), list[float]()
    for event in trace.events:
        if event.comes:
            here.append(event.node)
        else:
            places.append(here.index(event.node) / (len(here) - 1))
            here.remove(event.node)
    assert len(places) > 100
    assert 0.4 < sum(places) / len(places) < 0.6
    assert told(read(tmp_path, "\n".join(lines))) == told(trace)
