"""Features of a strategy, by which a model that was fitted to trials ranks it.

Rule: counts alone, none of which needs a rate, so that what was learnt on one fleet says something
of another.
"""

import numpy as np

from bamboo.planner.sync.flows import Figures
from bamboo.planner.sync.resolved import Resolved

FEATURES = tuple(
    f"{fold} over {over} of {what}"
    for over in ("links", "buckets")
    for what in ("bytes", "messages", "flops")
    for fold in ("max", "sum")
)
"""Their names, in order."""
MOST_NAMED = 8
"""On a grid with more pipelines, links and pipelines have no features of their own."""


def features_of(resolved: Resolved) -> Figures:
    """The features of a strategy that is resolved, shape (12,). A link leads from one node to
    another, and what the receiver computes with what came counts for the link. Each ship counts as
    a link, and all ships of a stage as one bucket."""
    links: list[Figures] = []
    buckets: list[tuple[float, float, float]] = []
    for stage in resolved.stages:
        count = resolved.situation.pipelines
        found = np.zeros((3, count, count))
        for one in stage.buckets:
            exchanged = one.exchanged
            sent = np.stack([(exchanged.out > 0).astype(float), (exchanged.back > 0).astype(float)])
            # Each receiver forms products of what each other one sent.
            came = exchanged.out.sum(axis=0)
            share = np.divide(exchanged.out, came, out=np.zeros_like(exchanged.out), where=came > 0)
            of_bucket = np.stack([exchanged.bytes, sent.sum(axis=0), share * exchanged.flops])
            found += of_bucket
            buckets.append(tuple(map(float, of_bucket.sum(axis=(1, 2)))))  # type: ignore[arg-type]
        links.append(found.reshape(3, -1))
        if resolved.situation.replica:
            ship = (stage.shipped.bytes, 1.0, stage.shipped.flops)
            links.append(np.repeat(np.array(ship)[:, None], count, axis=1))
            buckets.append(tuple(count * x for x in ship))  # type: ignore[arg-type]
    of_links = np.concatenate(links, axis=1) if links else np.zeros((3, 1))
    of_buckets = np.array(buckets or [(0.0, 0.0, 0.0)]).T
    return np.array(
        [
            fold(row)
            for table in (of_links, of_buckets)
            for row in table
            for fold in (np.max, np.sum)
        ]
    )


def named_features(resolved: Resolved) -> dict[str, float]:
    """The features of a strategy by name, with those of each link and each pipeline, for a grid of
    few pipelines."""
    found = dict(zip(FEATURES, map(float, features_of(resolved)), strict=True))
    count = resolved.situation.pipelines
    if not 1 < count <= MOST_NAMED:
        return found
    own = [bucket.exchanged for stage in resolved.stages for bucket in stage.buckets]
    for one in range(count):
        found[f"added@{one}"] = sum(float(x.added[one]) for x in own)
        found[f"flops@{one}"] = sum(float(x.flops[one]) for x in own)
        for other in range(count):
            if other != one:
                sent = max(float(stage.bytes[one, other]) for stage in resolved.stages)
                found[f"bytes@{one}-{other}"] = sent
    return found
