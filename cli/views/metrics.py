"""What a model measures beside its loss, in words."""

from collections.abc import Mapping
from typing import Any

from bamboo.quantities import count
from cli.echo import printable

SHOWN = 4


def metric_words(metrics: Mapping[str, float]) -> list[str]:
    """`accuracy 0.9844` for each of the first metrics; the others are counted."""
    words = [f"{printable(name)} {value:.4g}" for name, value in metrics.items()]
    more = len(words) - SHOWN
    return [*words[:SHOWN], *([f"and {count(more, 'more metric')}"] if more > 0 else [])]


def evaluation_words(found: Mapping[str, Any] | None) -> str:
    """`loss 3.2101, accuracy 0.9844 in the evaluation after step 20`; "" where there was none."""
    if not found:
        return ""
    measured = ", ".join([f"loss {found['loss']:.4f}", *metric_words(found["metrics"])])
    return f"{measured} in the evaluation after step {found['step']}"
