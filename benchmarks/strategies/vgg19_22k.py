"""A VGG19 with 21,841 classes under each strategy of synchronisation, on paper.

    python -m benchmarks.strategies.vgg19_22k [--pipelines 8]

The network of Simonyan and Zisserman (2015) with the classes of ImageNet 22K, the workload with
which Poseidon (USENIX ATC 2017) showed factors: 229 million parameters, 91 % of them in three
linear layers that see 32 rows a step. Every pipeline is one GPU of a g5.xlarge with 32 images.
Nothing runs: bytes follow from shapes, times from published figures of the GPU, and dollars from a
spot price of the catalogue.
"""

import argparse
from collections.abc import Iterator
from typing import Any

from bamboo.config.catalogue import installed_catalogue, load_gpus
from bamboo.planner.layers.facts import LayerFacts
from bamboo.planner.layers.synced import ParameterFacts
from bamboo.planner.profiles.workload import WorkloadFigures
from bamboo.planner.step.step_time import StepTimes
from bamboo.planner.sync.price import can_hide
from bamboo.planner.sync.situation import Syncing
from bamboo.study.workload import ADDED_ON_CARD_PER_S, MESSAGE_S
from bamboo.topology.grid import Grid
from bamboo.topology.virtual_nodes import BatchShape
from bamboo.value import samples_per_s
from benchmarks.measuring.claim import Claim
from benchmarks.measuring.options import at_least, parsed
from benchmarks.measuring.report import command_of, write_result

IMAGES, CLASSES = 32, 21_841
KIND = "g5.xlarge"
CHANNELS = (
    64,
    64,
    0,
    128,
    128,
    0,
    256,
    256,
    256,
    256,
    0,
    512,
    512,
    512,
    512,
    0,
    512,
    512,
    512,
    512,
    0,
)
"""Of the 3 x 3 convolutions; 0: both sides are halved."""
LINEAR = ((4096, 25_088), (4096, 4096), (CLASSES, 4096))
GBPS = (2.5, 10.0, 25.0)
STRATEGIES = ("tree", "owner", "balanced", "factors-hybrid", "auto")
MILLION = 1e6


def weights() -> Iterator[tuple[str, tuple[int, ...], float, int, int]]:
    """Of each layer: its name, the weight's shape, flops of an image's forward, and the numbers of
    its output and of its bias."""
    side, before = 224, 3
    for channels in CHANNELS:
        if not channels:
            side //= 2
            continue
        shape = (channels, before, 3, 3)
        flops = 2.0 * channels * before * 9 * side * side
        yield "convolution", shape, flops, channels * side * side, channels
        before = channels
    for rows, columns in LINEAR:
        yield "linear", (rows, columns), 2.0 * rows * columns, rows, rows


def network(pipelines: int, gbps: float, strategy: str) -> WorkloadFigures:
    """The network on so many GPUs."""
    table, kind = load_gpus(), installed_catalogue().find(KIND)
    gpu = table.find(kind.gpu)
    flops_per_s = gpu.tflops("fp32") * 1e12 * table.share("fp32")
    layers = []
    for index, (name, shape, flops, output, biases) in enumerate(weights()):
        weight = ParameterFacts(
            name=f"{index}.weight",
            shape=shape,
            layer=index,
            rows_k=IMAGES if name == "linear" else 0,
            why_not="" if name == "linear" else "is used by a convolution",
        )
        bias = ParameterFacts(
            name=f"{index}.bias", shape=(biases,), layer=index, why_not="is a vector"
        )
        layers.append(
            LayerFacts(
                name=name,
                parameters=weight.size + bias.size,
                moment_bytes=8 * (weight.size + bias.size),
                forward_flops=IMAGES * flops,
                output_bytes=4 * IMAGES * output,
                activation_bytes=8 * IMAGES * output,
                synced=(weight, bias),
            )
        )
    forward_s = tuple(layer.forward_flops / flops_per_s for layer in layers)
    rate = gbps * 1e9 / 8
    return WorkloadFigures(
        name="VGG19-22K",
        source=f"modelled for {gpu.name} by published figures",
        layers=tuple(layers),
        forward_s=forward_s,
        backward_s=tuple(2 * x for x in forward_s),
        shape=BatchShape(virtual_nodes=pipelines, microbatches=1),
        batch=pipelines * IMAGES,
        latency_s=1e-4,
        bytes_per_s=rate,
        node_bytes_per_s=rate,
        syncing=Syncing(
            sync=strategy,
            flops_per_s=flops_per_s,
            added_per_s=ADDED_ON_CARD_PER_S,
            message_s=MESSAGE_S,
        ),
    )


def row(pipelines: int, gbps: float, strategy: str) -> dict[str, Any]:
    """One strategy at one rate."""
    work = network(pipelines, gbps, strategy)
    grid, shares = Grid(pipelines=pipelines, stages=1), (1,) * pipelines
    times = StepTimes(work, "off")
    step_s = times.calm_s(grid, shares)
    low, high = installed_catalogue().find(KIND).spot_usd_per_hour
    usd_per_s = pipelines * (low + high) / 2 / 3600
    per_s = samples_per_s(work.batch, step_s)
    return {
        "gbps": gbps,
        "strategy": strategy,
        "sent_mb": times.sent_bytes(grid, shares)[0] / 1e6,
        "step_s": step_s,
        "can_hide": can_hide(times.resolved(grid, shares)),
        "images_per_s": per_s,
        "usd_per_million_images": MILLION / per_s * usd_per_s,
    }


def claims(rows: list[dict[str, Any]]) -> list[Claim]:
    """What the strategies send and how long a step takes, against limits for eight pipelines."""
    sent = {one["strategy"]: one["sent_mb"] for one in rows}
    times = sent["tree"] / sent["factors-hybrid"]
    return [
        Claim(about="MB a node and step, tree", found=sent["tree"], limit=1604.0),
        Claim(
            about="MB a node and step, factors-hybrid", found=sent["factors-hybrid"], limit=198.0
        ),
        Claim(about="tree over factors-hybrid", found=times, limit=8.1, at_most=False),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pipelines", type=at_least(2), default=8)
    options = parsed(parser)
    work = network(options.pipelines, 10.0, "tree")
    parameters = sum(layer.parameters for layer in work.layers)
    print(f"on paper: {parameters / 1e6:.1f} M parameters, {work.source}; no claim beyond that")
    rows = [row(options.pipelines, gbps, strategy) for gbps in GBPS for strategy in STRATEGIES]
    print(
        f"{'Gbps':>5} {'strategy':15} {'MB a node':>9} {'step':>8} {'hidden':>6} {'$/M images':>10}"
    )
    for one in rows:
        print(
            f"{one['gbps']:5.1f} {one['strategy']:15} {one['sent_mb']:9.1f} "
            f"{one['step_s'] * 1e3:6.0f}ms {one['can_hide']:6.0%} "
            f"{one['usd_per_million_images']:10.2f}"
        )
    found = claims(rows) if options.pipelines == 8 else []
    for claim in found:
        print(claim.line())
    body = {
        "parameters": parameters,
        "modelled": True,
        "rows": rows,
        "claims": [
            {"about": x.about, "found": x.found, "limit": x.limit, "holds": x.holds} for x in found
        ],
    }
    print(write_result("vgg19-22k", command_of("strategies.vgg19_22k", options), body))


if __name__ == "__main__":
    main()
