"""docs/claims.md has the figures of the results that are checked in, and README.md quotes them."""

from typing import Any

import pytest

from benchmarks.claims import __main__ as claims
from tests.tidy.tree import ROOT


def test_the_page_is_what_the_results_say() -> None:
    again = "it is not what the results say: run `python -m benchmarks.claims`"
    assert claims.PAGE.read_text(encoding="utf-8") == claims.page(), again


def test_the_readme_quotes_them() -> None:
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    quoted = [x for section in claims.spec()["section"] for x in claims.rows(section) if x.readme]
    assert quoted
    wrong = [f"{x.about}: it does not say {x.readme!r}" for x in quoted if x.readme not in readme]
    assert not wrong, "change README.md, or `readme` in benchmarks/claims/claims.toml"


RESULT: dict[str, Any] = {
    "facts": {"date": "2026-01-02", "commit": "abc", "command": "python -m benchmarks.x"},
    "rows": [{"mode": "off", "s": [1.0, 2.0, 4.0]}, {"mode": "on", "s": [1.1, 2.4, 4.8]}],
    "bound": 2.0,
}
ON_OVER_OFF = {"over": "rows/1/s", "by": "rows/0/s", "excess": True, "say": "{:+.0f} %"}


@pytest.mark.parametrize(
    ("claim", "figure", "quartiles"),
    [
        ({"over": "rows/mode=off/s"}, "2.00", ("1.50", "3.00")),
        ({"over": "rows/0/s", "is": "most"}, "4.00", ("–", "–")),
        ({"over": ["rows/0/s", "rows/1/s"], "count": 2.0, "say": "{} of {}"}, "2 of 6", ("–", "–")),
        (ON_OVER_OFF, "+20 %", ("+15 %", "+20 %")),
        ({"over": "bound", "by": "rows/0/s"}, "1.00", ("0.75", "1.50")),
        ({"figure": "rows/mode=on/s/0", "say": "{:.1f} s"}, "1.1 s", ("–", "–")),
    ],
)
def test_a_claim_is_read_from_its_result(
    claim: dict[str, Any], figure: str, quartiles: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "newest", lambda name: RESULT)
    found = claims.row({"about": "a", "file": "x", "on": "paper", **claim})
    assert (found.figure, found.quartiles) == (figure, quartiles)


@pytest.mark.parametrize("path", ["rows/mode=none/s", "nothing", "rows/7/s"])
def test_a_claim_that_its_result_does_not_have_is_an_error(
    path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claims, "newest", lambda name: RESULT)
    with pytest.raises(LookupError):
        claims.row({"about": "a", "file": "x", "on": "paper", "over": path})


def test_a_result_that_is_not_there_is_named() -> None:
    with pytest.raises(LookupError, match=r"has no nothing-DATE\.json"):
        claims.newest("nothing")
