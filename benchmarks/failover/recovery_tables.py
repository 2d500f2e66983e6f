"""The tables of `recovery_at_size`, and their claims. Pure."""

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.measuring.claim import Claim
from benchmarks.measuring.report import median_with_interval, paired_ratios

MB = 10**6
JUDGED_MB = 512
"""State of a stage at which the pace is compared with a copy's."""
SENT_AT_ONCE = 2
"""Stages that are sent at once, each from one process to another."""
INDEPENDENT_S = 0.1
"""A stall that is longer by no more than this does not depend on the state's size."""
REPLACED = (
    f"{'':>8} {'EOF':>6} {'decide':>6} {'promote':>7} {'1st op':>6} ms  {'hit step':>8} "
    f"{'longest':>8} steps  {'sent MB':>8} {'protected':>9} s  {'steps':>6} {'overruns':>8}  bits"
)
GROWN = (
    f"{'':>8} {'stall':>7} s {'stall':>7} steps  {'sent MB':>8} {'in':>7} s  {'ahead MB':>8} "
    f"{'gradients':>9} {'in':>7} s {'GB/s':>6} {'of a copy':>9} "
    f"{'overruns':>8}  bits"
)


def replaced_row(found: dict[str, Any]) -> str:
    """A line of the table REPLACED."""
    parts = found["parts_ms"]
    step_s = found["step_s"]
    return (
        f"{parts['disconnect']:6.0f} {parts['decision']:6.0f} {parts['promotion']:7.0f} "
        f"{parts['first operation']:6.0f}     {found['hit_step_s'] / step_s:8.2f} "
        f"{found['longest_step_s'] / step_s:8.2f}        {found['sent_bytes'] / MB:8.1f} "
        f"{found['protected_s']:9.2f}    {found['protected_s'] / step_s:6.1f} "
        f"{found['overruns']:8d}  {found['differs'] or 'equal'}"
    )


def grown_row(found: dict[str, Any]) -> str:
    """A line of the table GROWN; with copies also its share of the fastest one over TCP."""
    copies = beside([found])
    fastest = max((rates[0] for way, rates in copies.items() if "tcp" in way), default=0.0)
    share = f"{found['gb_per_s'] / fastest:9.0%}" if fastest else f"{'':9}"
    return (
        f"{found['stall_s']:7.2f}   {found['stall_s'] / found['step_s']:7.2f}        "
        f"{found['sent_bytes'] / MB:8.1f} {found['sent_s']:7.2f}    "
        f"{found['ahead_bytes'] / MB:8.1f} {found['followed_bytes'] / MB:9.1f} "
        f"{found['ahead_s']:7.2f}   {found['gb_per_s']:6.2f} "
        f"{share} {found['overruns']:8d}  {found['differs'] or 'equal'}"
    )


def beside(plays: Sequence[dict[str, Any]]) -> dict[str, list[float]]:
    """GB/s of each way of copying, one value for each play: the mean of the measurements before it
    and after it. Empty where there were none."""
    measured = [play.get("copies", {}) for play in plays]
    ways = set(measured[0]).intersection(*measured[1:]) if measured else set()
    return {way: [statistics.mean(of[way]) for of in measured] for way in sorted(ways)}


def _paces(plays: Sequence[dict[str, Any]]) -> list[Claim]:
    """The pace compared with copies, play by play: with the fastest way over TCP, which the state
    takes here; with the fastest for as many at once as stages are sent; and with ZeroMQ's, our
    transport, for as many."""
    copies = beside(plays)
    if not copies:
        return []
    middles = {way: statistics.median(rates) for way, rates in copies.items()}
    over_tcp = [way for way in middles if "tcp" in way]
    as_many = [way for way in over_tcp if way.endswith(f"{SENT_AT_ONCE} at once")]
    out = []
    found = [play["gb_per_s"] for play in plays]
    carried = [way for way in as_many if way.startswith("zmq")]
    chosen = (max(ways, key=middles.__getitem__) for ways in (over_tcp, as_many, carried) if ways)
    for way in dict.fromkeys(chosen):
        share, low, high = median_with_interval(paired_ratios(found, copies[way]))
        about = f"{JUDGED_MB} MB a stage: its pace, of a copy's by {way}"
        interval = (low, high) if len(found) > 1 else None
        out.append(Claim(about=about, found=share, limit=0.6, at_most=False, interval=interval))
    return out


def claims(sizes: dict[str, Any]) -> list[Claim]:
    """The claims on adding a pipeline, by the medians of the rounds."""
    found = {int(mb): plays for mb, plays in sizes.get("grow", {}).items()}
    out = _paces(found.get(JUDGED_MB, []))
    if len(found) > 1:
        least, most = min(found), max(found)
        stalls_s = {
            mb: statistics.median(play["stall_s"] for play in found[mb]) for mb in (least, most)
        }
        about = f"stall at {most} MB a stage beyond that at {least} MB, s"
        more_s = stalls_s[most] - stalls_s[least]
        out.append(Claim(about=about, found=more_s, limit=INDEPENDENT_S))
    return out
