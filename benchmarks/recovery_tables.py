"""The tables of `recovery_at_size`, and what they say of what was to be reached. Pure."""

import statistics
from collections.abc import Mapping
from typing import Any

from benchmarks.claim import Claim
from benchmarks.copy_bandwidth import Yardstick

MB = 10**6
JUDGED_MB = 512
"""Of state a stage, at which the pace is held against a copy's."""
INDEPENDENT_S = 0.1
"""A stall that is so little longer is no longer for the state's size."""
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


def grown_row(found: dict[str, Any], copy_gb_per_s: float | None) -> str:
    """A line of the table GROWN; `copy_gb_per_s` is what a copy over TCP does, where
    it was measured."""
    share = f"{found['gb_per_s'] / copy_gb_per_s:9.0%}" if copy_gb_per_s else f"{'':9}"
    return (
        f"{found['stall_s']:7.2f}   {found['stall_s'] / found['step_s']:7.2f}        "
        f"{found['sent_bytes'] / MB:8.1f} {found['sent_s']:7.2f}    "
        f"{found['ahead_bytes'] / MB:8.1f} {found['followed_bytes'] / MB:9.1f} "
        f"{found['ahead_s']:7.2f}   {found['gb_per_s']:6.2f} "
        f"{share} {found['overruns']:8d}  {found['differs'] or 'equal'}"
    )


def claims(sizes: dict[str, Any], copies: Mapping[str, Yardstick]) -> list[Claim]:
    """What is to be reached by a pipeline more, by the medians of the rounds."""
    found = {int(mb): plays for mb, plays in sizes.get("grow", {}).items()}
    out = []
    if JUDGED_MB in found:
        pace = statistics.median(play["gb_per_s"] for play in found[JUDGED_MB])
        for copy in dict.fromkeys(copies.values()):  # the fastest over TCP, and of all
            about = f"{JUDGED_MB} MB a stage: its pace, of a copy's by {copy.way}"
            share = pace / copy.gb_per_s
            out.append(Claim(about=about, found=share, limit=0.6, at_most=False))
    if len(found) > 1:
        least, most = min(found), max(found)
        stalls_s = {
            mb: statistics.median(play["stall_s"] for play in found[mb]) for mb in (least, most)
        }
        about = f"stall at {most} MB a stage beyond that at {least} MB, s"
        more_s = stalls_s[most] - stalls_s[least]
        out.append(Claim(about=about, found=more_s, limit=INDEPENDENT_S))
    return out
