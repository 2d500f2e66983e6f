"""`bamboo profile` as text and as JSON: a row for each kind of layer, totals, shares, doubts."""

import json
from typing import Any

from bamboo.planner.layers.memory import STASHED_STEPS
from bamboo.planner.profiles.profiled import Profile, alike
from bamboo.quantities import count, duration, size
from bamboo.study.profiling import Found
from cli.echo import columns, paragraph

MUCH_SCATTER = 0.15
MUCH_LOAD = 0.75
"""Processes that want a core, per core, before the measurement adds its own."""
HEAD = ("layer", "", "forward", "backward", "share", "optimizer")
HEAD_BYTES = ("parameters", "share", "activations", "stash")


def profile_text(found: Found) -> str:
    """A table, and below it what it was made from and what is doubtful."""
    profile = found.profile
    one = f"a microbatch of {count(profile.microbatch, 'sample')}"
    if tokens := profile.microbatch * profile.context:
        one += f", {count(tokens, 'token')}"
    parameters = sum(layer.parameters for layer in profile.layers)
    lines = [
        f"{profile.job}: {count(len(profile.layers), 'layer')}, {parameters:,} parameters"
        f"{_frozen(profile)}; {one}",
        *paragraph(f"{_source(found)}"),
        *columns(_rows(profile), right=frozenset({*range(2, len(HEAD) + len(HEAD_BYTES))})),
        *paragraph(
            "activations: held from the forward to the backward of a microbatch; stash: its output "
            "and its input's gradient, of a stage that is this layer alone, in each of at most "
            f"{STASHED_STEPS} steps; optimizer: once a step; shares: of forward and backward, and "
            "of the parameters; a row of several layers has the figures of each"
        ),
    ]
    return "\n".join([*lines, *(line for note in _notes(found) for line in paragraph(note))])


def profile_body(found: Found) -> dict[str, Any]:
    """The value of `bamboo profile --json`; `profile` is what a planner reads."""
    profile = found.profile
    return {
        "schema_version": 1,
        "profile": json.loads(profile.to_json()),
        "stash_bytes": [profile.stash_bytes(i) for i in range(len(profile.layers))],
        "totals": _totals(profile),
        "microbatches_of_a_step": found.microbatches,
        "from_cache": found.kept,
        "path": str(found.path),
        "notes": _notes(found),
    }


def _totals(profile: Profile) -> dict[str, float]:
    layers = profile.layers
    return {
        "forward_s": sum(layer.forward_s for layer in layers),
        "backward_s": sum(layer.backward_s for layer in layers),
        "optimizer_s": sum(layer.optimizer_s for layer in layers),
        "parameters": sum(layer.parameters for layer in layers),
        "parameter_bytes": sum(layer.parameter_bytes for layer in layers),
        "activation_bytes": sum(layer.activation_bytes for layer in layers),
    }


def _source(found: Found) -> str:
    profile = found.profile
    threads = count(profile.threads, "thread")
    repeats = min((layer.repeats for layer in profile.layers), default=0)
    if profile.modelled and not profile.machine:
        return f"{profile.source}: nothing was built or timed (--fresh counts it here)"
    if profile.modelled:
        return f"{profile.source} ({profile.machine}, torch {profile.torch}): nothing was timed"
    again = f", kept from {profile.seen}" if found.kept else ""
    which = "" if profile.device == "cpu" else f" {profile.device}"
    return (
        f"{profile.source}{which} ({profile.machine}), {threads}, torch {profile.torch}; medians "
        f"of at least {count(repeats, 'repetition')}{again}"
    )


def _rows(profile: Profile) -> list[tuple[str, ...]]:
    totals = _totals(profile)
    both_s = totals["forward_s"] + totals["backward_s"]
    rows: list[tuple[str, ...]] = [(*HEAD, *HEAD_BYTES)]
    for group in alike(profile):
        layer = profile.layers[group.start]
        stash = [profile.stash_bytes(index) for index in group]
        rows.append(
            (
                f"{group.start} to {group.stop - 1}" if len(group) > 1 else str(group.start),
                layer.name,
                _short(layer.forward_s),
                _short(layer.backward_s),
                _share(layer.both_s, both_s),
                _short(layer.optimizer_s),
                size(layer.parameter_bytes),
                _share(layer.parameter_bytes, totals["parameter_bytes"]),
                size(layer.activation_bytes),
                size(max(stash)),
            )
        )
    rows.append(
        (
            "all",
            "",
            _short(totals["forward_s"]),
            _short(totals["backward_s"]),
            "",
            _short(totals["optimizer_s"]),
            size(totals["parameter_bytes"]),
            "",
            size(totals["activation_bytes"]),
            "",
        )
    )
    return rows


def _frozen(profile: Profile) -> str:
    """What no column of the table has."""
    found = sum(layer.frozen_bytes for layer in profile.layers)
    return f" that are trained, {size(found)} frozen or buffers" if found else ""


def _short(seconds: float) -> str:
    """A duration, in microseconds where it has no whole millisecond."""
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-3 else duration(seconds)


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole else "0%"


def _notes(found: Found) -> list[str]:
    profile = found.profile
    notes = list(found.notes)
    totals = _totals(profile)
    step_s = (totals["forward_s"] + totals["backward_s"]) * found.microbatches
    state = sum(layer.state_bytes for layer in profile.layers)
    notes.append(
        f"a step of {count(found.microbatches, 'microbatch', 'microbatches')} one after the other "
        f"on one device: {duration(step_s + totals['optimizer_s'])}; parameters, gradient and "
        f"moments of all layers: {size(state)}"
    )
    unlike = len({layer.measured_as for layer in profile.layers})
    if unlike < len(profile.layers) and profile.machine:
        notes.append(
            f"{unlike} of {count(len(profile.layers), 'layer')} were run: the others are made by "
            "the same functions for inputs of the same shape"
        )
    if found.gpu is not None:
        gpu, table = found.gpu, found.table
        share, issue_us = table.share(found.precision), table.issue_s(found.precision) * 1e6
        notes.append(
            f"{gpu.doubt or 'modelled'}: {gpu.arithmetic(found.precision)}. "
            f"{gpu.bandwidth_gb_per_s:g} GB/s and {gpu.memory_gib:g} GiB by the table of "
            f"{table.seen}; assumed are {share:.0%} of the first in products, "
            f"{table.bandwidth_share:.0%} of the second, and {issue_us:g} µs a kernel"
        )
        return notes
    if profile.scatter > MUCH_SCATTER:
        notes.append(
            f"times scatter: half of them lie within {profile.scatter:.0%} of the median; measure "
            "again when nothing else runs, with --fresh"
        )
    if profile.load > MUCH_LOAD:
        notes.append(
            f"the machine was at work already, {profile.load:.1f} processes for each core, so the "
            "times are too long; measure again when nothing else runs, with --fresh"
        )
    return notes
