"""Features of a strategy, from which a model that was fitted to trials ranks it.

Rule: counts alone, none of which needs a rate, so that what was learnt on one fleet says something
of another.
"""

from collections.abc import Sequence

import numpy as np

from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.sync.flows import Figures
from bamboo.planner.sync.resolved import Resolved, resolve
from bamboo.planner.sync.situation import Situation
from bamboo.topology.sync import Sync

FEATURES = tuple(
    f"{fold} over {over} of {what}"
    for over in ("links", "buckets")
    for what in ("bytes", "messages", "flops")
    for fold in ("max", "sum")
)
"""Their names, in order."""


def features(sync: Sync, facts: Sequence[ParameterFacts], situation: Situation) -> Figures:
    """The features of a strategy, of shape (12,). Raises ValueError as `resolve` does."""
    return features_of(resolve(sync, facts, situation))


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
