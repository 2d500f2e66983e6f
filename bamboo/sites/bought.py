"""What a job buys instances by: markets, and how fast each type is."""

from bamboo.config.catalogue import load_gpus
from bamboo.config.tree import JobConfig
from bamboo.errors import InputError
from bamboo.planner.prices.catalogue import Catalogue
from cloud.provider import Market


def speeds_of(job: JobConfig, catalogue: Catalogue) -> dict[str, float]:
    """How fast the job's instance types are relative to the first of them, by the published figures
    of their GPUs. All are equal where the table lacks one of them, or the job prefers by price
    alone."""
    if job.cloud.prefer == "price":
        return dict.fromkeys(job.cloud.instance_types, 1.0)
    table, precision = load_gpus(), job.train.precision
    kinds = [catalogue.find(name) for name in job.cloud.instance_types]
    try:
        flops = [table.of(k.gpu, k.gpu_memory_gib).tflops(precision) * k.gpus for k in kinds]
    except InputError:
        flops = [1.0] * len(kinds)
    return {kind.name: speed / flops[0] for kind, speed in zip(kinds, flops, strict=True)}


def markets_of(job: JobConfig) -> tuple[Market, ...]:
    """The markets to buy on: anchors are on demand, whatever the others are."""
    market = Market(job.cloud.market)
    return (market, Market.ON_DEMAND) if job.cloud.anchors else (market,)
