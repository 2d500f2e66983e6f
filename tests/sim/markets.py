"""Traces for tests: written out as a person would, or drawn by hypothesis."""

from hypothesis import strategies as st

from bamboo.sim.market.trace import Trace, TraceEvent

ZONES = ("east", "west")


def trace(*events: tuple[float, str], length_s: float | None = None) -> Trace:
    """Events as `(seconds, "+a")`, `(seconds, "-a")`; `"+a@east"` in a zone."""
    made = []
    zone_of: dict[str, str] = {}
    for at_s, who in events:
        node, _, zone = who[1:].partition("@")
        zone = zone_of.setdefault(node, zone)
        made.append(TraceEvent(at_s=float(at_s), node=node, comes=who[0] == "+", zone=zone))
    end_s = made[-1].at_s if length_s is None else length_s
    return Trace(source="test", events=tuple(made), length_s=end_s)


def told(trace: Trace) -> list[str]:
    return [f"{e.at_s:g} {'+' if e.comes else '-'}{e.node}" for e in trace.events]


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    """Any trace of up to 30 events, in zones or not; often several at one instant."""
    zones = draw(st.sampled_from([("",), ZONES]))
    events: list[TraceEvent] = []
    here: dict[str, str] = {}
    at_ms = 0
    for step in range(draw(st.integers(1, 30))):
        at_ms += draw(st.sampled_from([0, 0, 1, 500, 60_000]))
        comes = not here or draw(st.booleans())
        if comes:
            node = draw(
                st.sampled_from([n for n in ("a", "b", "a~2", f"n{step}") if n not in here])
            )
            here[node] = draw(st.sampled_from(zones))
        else:
            node = draw(st.sampled_from(sorted(here)))
        zone = here[node]
        if not comes:
            del here[node]
        events.append(TraceEvent(at_s=at_ms / 1e3, node=node, comes=comes, zone=zone))
    end_ms = at_ms + draw(st.sampled_from([0, 1, 60_000]))
    return Trace(source="drawn", events=tuple(events), length_s=end_ms / 1e3)
