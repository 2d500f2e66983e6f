"""GPUs by name, and a job's profile on one of them, modelled from the counted work.

Rule: pure; `bamboo.config.catalogue` reads the table. The result says that it is modelled, from
what, and with which assumptions; nothing here was measured on the GPU that it names.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bamboo.errors import InputError
from bamboo.planner.origin import Origin
from bamboo.planner.profiles.profiled import LayerProfile, Profile, Work
from bamboo.quantities import size

SCHEMA_VERSION = 4
GIB = 2**30
FP32, BF16 = "fp32", "bf16"
LEAST_BF16 = (8, 0)
"""The compute capability from which a GPU has bf16."""
UNMEASURED = "modelled, not yet measured on this card"
OWN = "its own"
"""The GPU of the job's instance type, whatever that is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One GPU, by published figures."""

    name: str
    capability: tuple[int, int]
    """CUDA's compute capability: (7, 5) for sm_75."""
    memory_gib: float
    fp32_tflops: float
    """Peak without tensor cores."""
    fp16_tflops: float
    """Peak of dense products on tensor cores; 0 if it has none, here and below."""
    bf16_tflops: float
    bandwidth_gb_per_s: float
    """Peak bandwidth of its memory."""
    host_gb_per_s: float
    """Peak rate of copies between its memory and the host's, in one direction."""
    origin: Origin
    """Where and when the figures were seen."""
    measured: str = ""
    """The result of Bamboo's own measurement on such a card, as the name of a file in
    `benchmarks/results/gpu` without its ending; "": there is none."""

    @property
    def sm(self) -> str:
        """Its compute capability as compilers write it: `sm_75`."""
        major, minor = self.capability
        return f"sm_{major}{minor}"

    @property
    def doubt(self) -> str:
        """UNMEASURED until Bamboo was measured on such a card, then ""."""
        return "" if self.measured else UNMEASURED

    def tflops(self, precision: str) -> float:
        """The peak of products in the precision of a job (`train.precision`)."""
        return self.bf16_tflops if precision == BF16 else self.fp32_tflops

    def arithmetic(self, precision: str) -> str:
        """The arithmetic of times in this precision; for fp32 also what bf16 would give."""
        if precision == BF16:
            return (
                f"bf16 on tensor cores, {self.bf16_tflops:g} TFLOPS at most, with parameters, "
                "gradients and moments in fp32"
            )
        less = self.fp32_tflops / self.bf16_tflops if self.bf16_tflops else 0.0
        bf16 = f"bf16 on them would take {less:.2g} of the time of products"
        return f"fp32 without tensor cores, {self.fp32_tflops:g} TFLOPS at most; " + (
            f"{bf16} ({self.bf16_tflops:g} TFLOPS)" if less else "it has no bf16"
        )

    def times(self, precision: str) -> str:
        """A sentence: what its times are, and whether anything was measured on such a card."""
        seen = self.doubt or "modelled; what was measured on such a card is in docs/gpu.md"
        return f"Times of {self.name} are those of {self.arithmetic(precision)}: {seen}."


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTable:
    """GPUs by name, and the assumptions that hold for all of them."""

    seen: str
    product_share: float
    """Share of the peak that matrix products in fp32 reach."""
    tensor_share: float
    """Share of the peak that products on tensor cores reach."""
    bandwidth_share: float
    copy_share: float
    """Share of the peak that copies between a GPU and its host reach."""
    kernel_s: float
    """Time from the issue of one kernel to that of the next, in fp32."""
    bf16_kernel_s: float
    """The same in bf16, where casts are kernels too."""
    gpus: Mapping[str, Gpu]

    def find(self, name: str) -> Gpu:
        """A GPU by name, in any case. Raises InputError, with the known names."""
        for known, gpu in self.gpus.items():
            if known.lower() == name.lower():
                return gpu
        raise InputError(
            f"GPU {name!r} is not in the table of {self.seen}; take one of {', '.join(self.gpus)}"
        )

    def has(self, name: str) -> bool:
        """Whether `of` finds a variant of this GPU."""
        return any(known.partition("-")[0] == name for known in self.gpus)

    def of(self, name: str, memory_gib: float) -> Gpu:
        """The variant of a GPU with the nearest memory size, because EC2 reports the memory without
        that for error correction (22.4 of 24 GiB). Raises InputError."""
        variants = [gpu for gpu in self.gpus.values() if gpu.name.partition("-")[0] == name]
        if not variants:
            return self.find(name)
        return min(variants, key=lambda gpu: abs(gpu.memory_gib - memory_gib))

    def check_precision(self, gpu: Gpu, precision: str) -> None:
        """Raise InputError, in one line with the remedy, for a precision that the GPU lacks."""
        if precision == BF16 and gpu.capability < LEAST_BF16:
            able = [name for name, one in self.gpus.items() if one.capability >= LEAST_BF16]
            raise InputError(
                f"train.precision = {precision!r} begins at sm_{LEAST_BF16[0]}{LEAST_BF16[1]} and "
                f'one {gpu.name} is {gpu.sm}; take "{FP32}", or a type with one of '
                f"{', '.join(able) or 'a newer generation'}"
            )

    def share(self, precision: str) -> float:
        """The share of the peak that products in this precision reach."""
        return self.tensor_share if precision == BF16 else self.product_share

    def issue_s(self, precision: str) -> float:
        """Time from the issue of one kernel to that of the next in this precision."""
        return self.bf16_kernel_s if precision == BF16 else self.kernel_s

    def seconds(self, work: Work, gpu: Gpu, precision: str = FP32) -> float:
        """The time of a GPU for this work. Matrix products take the longer of arithmetic and memory
        (Williams et al., Roofline, 2009), everything else takes its memory traffic. The time is not
        below that of issuing the kernels, which runs concurrently. Bytes were counted in fp32."""
        bytes_per_s = gpu.bandwidth_gb_per_s * 1e9 * self.bandwidth_share
        flops_per_s = gpu.tflops(precision) * 1e12 * self.share(precision)
        products_s = max(work.product_flops / flops_per_s, work.product_bytes / bytes_per_s)
        issue_s = work.kernels * self.issue_s(precision)
        return max(products_s + work.other_bytes / bytes_per_s, issue_s)

    def host_bytes_per_s(self, gpu: Gpu) -> float:
        """The rate of copies from the host to a GPU, or back."""
        return gpu.host_gb_per_s * 1e9 * self.copy_share

    def modelled(self, profile: Profile, gpu: Gpu, precision: str = FP32) -> Profile:
        """The same layers on one GPU. Raises InputError where it lacks the precision."""
        self.check_precision(gpu, precision)
        counted = "a CPU" if profile.device == "cpu" else profile.device
        work = "the model's shape" if profile.modelled else f"work counted on {counted}"
        return replace(
            profile,
            source=f"modelled for {gpu.name} by published figures, from {work}",
            modelled=True,
            device=gpu.name,
            layers=tuple(self._modelled(layer, gpu, precision) for layer in profile.layers),
        )

    def check_room(self, profile: Profile, gpu: Gpu) -> None:
        """Raise InputError where a layer does not fit into a GPU even alone, with its bytes and the
        GPUs that have room for it."""
        beyond = profile.largest_beyond(gpu.memory_gib * GIB)
        if beyond is not None:
            layer = profile.layers[beyond]
            roomy = [n for n, g in self.gpus.items() if g.memory_gib * GIB >= layer.least_bytes]
            raise InputError(
                f"layer {beyond} ({layer.name}) needs {size(layer.least_bytes)} alone: "
                f"{STATE_WORDS} of {layer.parameters:,} scalars, and {profile.microbatch} samples "
                f"in flight; {gpu.name} has {gpu.memory_gib:g} GiB; take a smaller "
                "train.microbatch or layer"
                + (f", or one of {', '.join(roomy)}" if roomy else "; no GPU of the table has it")
            )

    def _modelled(self, layer: LayerProfile, gpu: Gpu, precision: str) -> LayerProfile:
        return replace(
            layer,
            forward_s=self.seconds(layer.forward, gpu, precision),
            backward_s=self.seconds(layer.backward, gpu, precision),
            optimizer_s=self.seconds(layer.optimizer, gpu),
            scatter=0.0,
            repeats=0,
        )


STATE_WORDS = "parameters, gradient and what the optimizer keeps"


def parse_gpus(text: str) -> GpuTable:
    """Read the TOML text of the table. Raises ValueError if it is not one."""
    raw = tomllib.loads(text)
    if raw.get("schema_version") != SCHEMA_VERSION:
        raise ValueError(
            f"the table of GPUs has schema {raw.get('schema_version')!r}, not {SCHEMA_VERSION}"
        )
    try:
        table = GpuTable(
            seen=str(raw["seen"]),
            product_share=float(raw["product_share"]),
            tensor_share=float(raw["tensor_share"]),
            bandwidth_share=float(raw["bandwidth_share"]),
            copy_share=float(raw["copy_share"]),
            kernel_s=float(raw["kernel_us"]) / 1e6,
            bf16_kernel_s=float(raw["bf16_kernel_us"]) / 1e6,
            gpus={name: _gpu(name, body) for name, body in raw["gpus"].items()},
        )
    except KeyError as error:
        raise ValueError(f"the table of GPUs lacks the key {error}") from error
    shares = (
        table.product_share,
        table.tensor_share,
        table.bandwidth_share,
        table.copy_share,
    )
    if not all(0 < x <= 1 for x in shares) or min(table.kernel_s, table.bf16_kernel_s) <= 0:
        raise ValueError(f"shares {shares} lie above 0 and at most at 1, times of kernels above 0")
    return table


def _gpu(name: str, body: Mapping[str, Any]) -> Gpu:
    major, _, minor = str(body["capability"]).partition(".")
    gpu = Gpu(
        name=name,
        capability=(int(major), int(minor)),
        memory_gib=float(body["memory_gib"]),
        fp32_tflops=float(body["fp32_tflops"]),
        fp16_tflops=float(body["fp16_tflops"]),
        bf16_tflops=float(body["bf16_tflops"]),
        bandwidth_gb_per_s=float(body["bandwidth_gb_per_s"]),
        host_gb_per_s=float(body["host_gb_per_s"]),
        origin=Origin(seen=str(body["seen"]), source=str(body["source"])),
        measured=str(body["measured"]),
    )
    if min(gpu.memory_gib, gpu.fp32_tflops, gpu.bandwidth_gb_per_s, gpu.host_gb_per_s) <= 0:
        raise ValueError(f"{name}: memory, arithmetic and bandwidth must be above 0")
    if min(gpu.fp16_tflops, gpu.bf16_tflops) < 0:
        raise ValueError(f"{name}: fp16_tflops and bf16_tflops must be 0 or more")
    if (gpu.bf16_tflops > 0) != (gpu.capability >= LEAST_BF16):
        raise ValueError(f"{name}: {gpu.sm} and {gpu.bf16_tflops:g} TFLOPS of bf16 do not fit")
    return gpu
