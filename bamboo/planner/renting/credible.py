"""Options that are not advised: their cost is many times the known cost of the same work, or they
need more instances than a user should count on.

Rule: the known cost is derived from figures that have a source. It takes the flops of the job's
matrix products, at the catalogue's cheapest bf16 tensor flops per dollar on demand with every GPU
of the instance used, of which a run reaches UTILISATION. It is on demand because anybody can buy at
that price.
"""

from dataclasses import dataclass

from bamboo.planner.layers.memory import Sizes, StageCounts, sizes_of
from bamboo.planner.prices.catalogue import Catalogue
from bamboo.planner.prices.quota import quota_needed
from bamboo.planner.profiles.gpus import BF16, FP32, GpuTable
from bamboo.planner.profiles.profiled import Profile
from bamboo.planner.renting.option import HOUR_S, Offer, Option
from bamboo.value import samples_per_usd

UTILISATION = 0.40
"""Share of the peak, by the flops of the model: large runs on tensor cores are published to reach
38 to 43 % (Llama Team, "The Llama 3 Herd of Models", 2024)."""
MOST_TIMES = 5.0
"""Multiple of the best known price; an option that costs more is not advised."""
MOST_VCPUS = 5_000
"""vCPUs of one GPU quota: assumed, because AWS publishes no upper end. A new account has none."""
ALONE = StageCounts(stage=0, waiting=0, in_flight=1, stashed=0, replica=False, ahead=0)
"""A model on one device, with one microbatch after the other and one gradient."""
NOTHING = Sizes(parameters=0, activations=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class BestKnown:
    """The known cost of the matrix products of one sample."""

    usd_per_sample: float
    source: str
    """The source of the figure, in words."""
    arithmetic: str
    """The arithmetic of the job, with which options are compared with it."""

    @property
    def least_value(self) -> float:
        """Samples per dollar; an option that is worth less is not advised."""
        return 1 / (MOST_TIMES * self.usd_per_sample)

    def usd_per_million(self, tokens_per_sample: int) -> float:
        """The known cost of a million tokens; of samples where a sample has no tokens."""
        return self.usd_per_sample / (tokens_per_sample or 1) * 1e6

    def doubt_at_most(self, name: str, value: float, *, tokens_per_sample: int) -> str:
        """Why an option that is worth at most `value` is not advised."""
        least = 1e6 / value / (tokens_per_sample or 1)
        return self.doubt(f"{name}, costs at least", least, tokens_per_sample=tokens_per_sample)

    def doubt(self, costs: str, usd: float, *, tokens_per_sample: int) -> str:
        """Why something that `costs` this many dollars per million tokens, or samples, is not
        advised."""
        known = self.usd_per_million(tokens_per_sample)
        times = usd / known
        times_text = f"{times:,.0f}" if times >= 100 else f"{times:.3g}"
        return (
            f"the best, {costs} {_usd(usd)} {a_million(tokens_per_sample)}, {times_text} times the "
            f"{_usd(known)} of {self.source}; beyond {MOST_TIMES:g} times that nothing is advised. "
            f"The job computes {self.arithmetic}, on one GPU of an instance"
        )

    def times(self, option: Option) -> float:
        """The cost of a sample with the option, as a multiple of the known cost."""
        return 1 / (option.value * self.usd_per_sample)


@dataclass(frozen=True, slots=True, kw_only=True)
class OneCard:
    """A single GPU that fits the whole model, without a pipeline."""

    offer: Offer
    samples_per_usd: float
    """On demand, with the times of the offer, however many other GPUs its instance has."""


def best_known(
    counted: Profile, catalogue: Catalogue, gpus: GpuTable, precision: str = FP32
) -> BestKnown | None:
    """Computed from the counted work of a job's layers. None: they have no matrix products, or no
    type of the catalogue has a GPU with bf16."""
    flops = sum(x.forward.product_flops + x.backward.product_flops for x in counted.layers)
    able = {}
    for kind in catalogue.types.values():
        if not gpus.has(kind.gpu):
            continue  # a catalogue may be newer than the table
        tflops = gpus.of(kind.gpu, kind.gpu_memory_gib).bf16_tflops
        if tflops and kind.on_demand_usd_per_hour:
            able[kind.name] = kind.gpus * tflops / kind.on_demand_usd_per_hour
    if not flops or not able:
        return None
    kind = catalogue.types[max(able, key=lambda name: able[name])]
    peak = gpus.of(kind.gpu, kind.gpu_memory_gib).bf16_tflops
    each = "its GPU" if kind.gpus == 1 else f"each of its {kind.gpus} GPUs"
    return BestKnown(
        usd_per_sample=flops / counted.microbatch / (able[kind.name] * 1e12 * UTILISATION * HOUR_S),
        source=f"the job's flops in bf16 on {kind.name} at ${kind.on_demand_usd_per_hour:g}/h on "
        f"demand, {100 * UTILISATION:.0f} % of the {peak:g} TFLOPS of {each}",
        arithmetic="in bf16" if precision == BF16 else "in fp32 without tensor cores",
    )


def one_card(offers: tuple[Offer, ...]) -> OneCard | None:
    """The GPU that trains the whole model for the fewest dollars; None if it fits none."""
    found = []
    for offer in offers:
        work = offer.workload
        sizes = sizes_of(work.layers)
        if ALONE.bytes_of(sizes, NOTHING, crossing_bytes=0).total <= offer.memory_bytes:
            step_s = sum(work.both_s) * work.shape.total + sum(work.optimizer_s)
            value = samples_per_usd(work.batch / step_s, offer.on_demand_usd_per_hour)
            found.append(OneCard(offer=offer, samples_per_usd=value))
    return max(found, key=lambda one: one.samples_per_usd, default=None)


def doubt_of(
    option: Option, best: BestKnown | None, catalogue: Catalogue, *, tokens_per_sample: int
) -> str:
    """Why an option is not advised, as text after "because"; "" if nothing speaks against it.
    `best` None: its price is not compared."""
    if best is not None and best.times(option) > MOST_TIMES:
        return best.doubt(
            f"{option.line.name} with {option.plan.nodes} nodes, costs",
            option.usd_per_million(tokens_per_sample),
            tokens_per_sample=tokens_per_sample,
        )
    for spot, nodes in option.by_market().items():
        for need in quota_needed({option.line.instance_type: nodes}, catalogue, spot=spot):
            has = max(MOST_VCPUS, need.has or 0)
            if need.vcpus is not None and need.vcpus > has:
                return (
                    f"the best, {option.line.name} with {option.plan.nodes} nodes, needs "
                    f"{need.vcpus:,} vCPUs of one quota, and more than {has:,.0f} are not to be "
                    "counted on"
                )
    return ""


def a_million(tokens_per_sample: int) -> str:
    """`a million tokens`; of samples where a sample has no tokens."""
    return f"a million {'tokens' if tokens_per_sample else 'samples'}"


def _usd(amount: float) -> str:
    return f"${amount:,.2f}" if amount >= 1 else f"${amount:.2g}"
