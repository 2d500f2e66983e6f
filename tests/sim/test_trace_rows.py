"""An event trace as other tools write it: taken where it can mean one thing, else refused in the
words of the format that it resembles, with the line and what to write."""

from pathlib import Path

import pytest

from bamboo.errors import InputError
from bamboo.sim.market.trace import Trace, parse_trace

EVENTS, COUNTS = "write `ms,add|remove,node[,zone]`", "write `YYYY-MM-DD, HH:MM:SS, alive`"
PLAIN = "0,add,a,east\n1500,remove,a\n9000,end\n"


def parsed(text: str) -> Trace:
    return parse_trace(text, Path("t.csv"))


@pytest.mark.parametrize(
    "text",
    [
        "ms,event,node,zone\n0,add,a,east\n1500,remove,a\n9000,end\n",
        "0,ADD,a,east\n1500,Remove,a\n9000,END\n",
        "  0 , add , a , east \n\n 1500 ,remove, a\n9000, end\n",
        "0;add;a;east\n1500;remove;a\n9000;end\n",
        "0\tadd\ta\teast\n1500\tremove\ta\n9000\tend\n",
        "0 add a east\n1500  remove a\n9000 end\n",
        "0,add,a,east,,\n1500,remove,a,,,\n9000,end,,,,\n",
        "# Time_MS,Action,Instance_ID,AZ,Type\n0,ADD,a,east,p3.2xlarge\n"
        "1500,remove,a,,p3.2xlarge\n9000,end\n",
    ],
)
def test_what_can_mean_one_thing_is_the_plain_trace(text: str) -> None:
    assert parsed(text) == parsed(PLAIN)


def test_a_further_column_that_the_header_names_otherwise_is_no_zone() -> None:
    trace = parsed("ms,event,node,price,az_id\n0,add,a,1.5,x\n5,remove,a,2.5,x\n")
    assert [(e.node, e.zone) for e in trace.events] == [("a", ""), ("a", "")]


def test_alive_counts_may_have_a_header_and_other_separators_too() -> None:
    plain = parsed("2021-12-10, 13:07:45, 2\n2021-12-10, 13:08:45, 0\n")
    for text in (
        "date,time,alive\n2021-12-10,13:07:45,2\n2021-12-10,13:08:45,0\n",
        "2021-12-10;13:07:45;2\n2021-12-10;13:08:45;0\n",
        "2021-12-10 13:07:45 2\n2021-12-10 13:08:45 0\n",
    ):
        assert parsed(text) == plain


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        # Other units, other columns or another order would be misread in silence.
        (
            "seconds,event,node\n0,add,a\n",
            "line 1: 'seconds,event,node'",
            "is 'seconds', and is to be ms",
        ),
        (
            "ms,node,event\n0,a,add\n",
            "line 1: 'ms,node,event'",
            "column 2 of this header is 'node'",
        ),
        ("ms,event,zone,node\n0,add,east,a\n", "line 1: ", "column 3 of this header is 'zone'"),
        ("ms,event\n0,add\n", "line 1: 'ms,event'", "is '', and is to be node"),
        ("ms,event,node,type,zone\n0,add,a,b,c\n", "line 1: ", "not its fourth column"),
        ("ms,event,node\n0,a,add\n", "line 2: '0,a,add'", "'a' is neither add nor remove"),
        ("ms,event,node\n0,add,a\nms,event,node\n", "line 3: ", "'event' is neither add nor"),
        ("0,Start,a\n1,stop,a\n", "line 1: '0,Start,a'", "'Start' is neither add nor remove"),
        ("0,start,a\n1,add,b\n", "line 1: '0,start,a'", "'start' is neither add nor remove"),
        ("0,add,a,east,b\n", "line 1: '0,add,a,east,b'", "has 5 columns, and no header"),
        ("0,add,a;0,add,b\n", "line 1: ", "has 5 columns, and no header"),
        ("0;add;a\n1;add;b,c\n", "line 2: '1;add;b,c'", "a node or zone has no comma"),
        ("0,add,\n", "line 1: '0,add,'", ""),
        ("1.5,add,a\n", "line 1: '1.5,add,a'", "no whole milliseconds"),
    ],
)
def test_an_event_trace_is_refused_in_its_own_words(text: str, place: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed(text)
    message = str(caught.value)
    assert message.startswith("t.csv: line ")
    assert place in message
    assert says in message
    assert EVENTS in message or "no whole milliseconds; write" in message
    assert "YYYY" not in message


@pytest.mark.parametrize(
    "text", ["start of it\n", "a title\n\n0,add,a\n", "0;add;a,b\n", "x,y,z\n"]
)
def test_what_resembles_no_format_has_the_words_for_all(text: str) -> None:
    with pytest.raises(InputError, match=r"line 1: .*`ms,add.* lines, `YYYY.* lines, or JSON"):
        parsed(text)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("date,hour,alive\n2021-12-10,13:07:45,2\n", "header is 'hour', and is to be time"),
        ("2021-12-10 13:07:45, 2\n", COUNTS),
        ("2021-12-10, 2\n", COUNTS),
        ("10/12/2021, 13:07:45, 2\n", COUNTS),
    ],
)
def test_counts_are_refused_in_their_own_words(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        parsed(text)
    assert "t.csv: line 1: " in str(caught.value)
    assert says in str(caught.value)
    assert "ms,add" not in str(caught.value)


def test_a_header_alone_is_no_trace() -> None:
    with pytest.raises(InputError, match=r"t\.csv: has a header alone; give `ms,add"):
        parsed("ms,event,node\n")
