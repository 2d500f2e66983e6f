"""What others wrote steers no terminal, wherever it is shown."""

import io
import unicodedata

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from bamboo.coord.follow import Decision
from bamboo.core.events import FaultScope
from bamboo.core.machine import transition
from bamboo.core.state import Policy
from bamboo.runs.progress import Progress
from cli.echo import echo, echo_result, printable
from cli.screen import LiveScreen
from tests.core.build import failed, forming, joined

HOSTILE = "\x1b]0;mine\x07\x1b[2J\x9b31m\u202egnp.exe\r\x08\x00\x7f\u2028\ud800"
STEERS = set("\x1b\x07\x9b\u202e\r\x08\x00\x7f\u2028\ud800")


@given(st.text(st.characters()))
@example(HOSTILE)
def test_only_what_moves_nothing_is_left(text: str) -> None:
    shown = printable(text)
    assert all(
        one in "\n\t" or one.isprintable() or unicodedata.category(one) == "Zs" for one in shown
    )
    assert printable(shown) == shown


@pytest.mark.parametrize("text", ["", "two\nlines\tand a tab", "é 日本\u3000\xa0 \\x1b", "x" * 999])
def test_ordinary_text_stays(text: str) -> None:
    assert printable(text) == text


@pytest.mark.parametrize("show", [echo, echo_result])
def test_printed_lines(show: object, capsys: pytest.CaptureFixture[str]) -> None:
    show(f"node says {HOSTILE}")  # type: ignore[operator]
    out = capsys.readouterr().out
    assert not STEERS & set(out)
    assert out.startswith(r"node says \x1b]0;mine\x07\x1b[2J\x9b31m\u202egnp.exe")


def test_a_live_screen() -> None:
    """What a node says of its end, and its own name, zone and pid."""
    console = Console(file=io.StringIO(), force_terminal=True, width=300)
    state = forming(stages=2)
    with LiveScreen(console) as screen:
        for event in (joined("a.1", zone=HOSTILE), failed("z.1", FaultScope.NODE, HOSTILE)):
            decided = transition(state, event, now_s=0.0, policy=Policy())
            state = decided.state
            progress = Progress(
                run="r", steps=9, tokens_per_step=1, state=state, started_at_s=0.0, now_s=0.0
            )
            decision = Decision(
                event=event,
                now_s=0.0,
                effects=decided.effects,
                reason=decided.reason,
                state=state,
                author="test",
            )
            screen.decided(progress, decision)
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert r"\x1b]0;mine" in shown
    assert not {"\x07", "\x9b", "\u202e", "\x00", "\ud800"} & set(shown)
    assert "\x1b]0" not in shown
    assert "\x1b[2J" not in shown
