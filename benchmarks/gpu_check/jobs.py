"""The jobs that a check trains, as TOML. Pure."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

Values: TypeAlias = Mapping[str, Mapping[str, Any]]

PHASES = ("forward", "backward", "exchange", "ship", "step")
LLAMA = "llama_shape.py:build"


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as sections of keys; what is not named has its default."""

    model: Mapping[str, Any]
    train: Mapping[str, Any]
    cluster: Mapping[str, Any]
    data: Mapping[str, Any] = field(default_factory=dict)
    kills: tuple[Mapping[str, Any], ...] = ()

    def text(self) -> str:
        """The job file."""
        sections: Values = {
            "model": self.model,
            "data": {"source": "python-stdlib", **self.data},
            "train": self.train,
            "cluster": self.cluster,
            "checkpoint": {"every_steps": 0},
            **({"chaos": {"kill": self.kills}} if self.kills else {}),
        }
        lines = []
        for name, values in sections.items():
            lines += [f"[{name}]", *(f"{key} = {_toml(x)}" for key, x in values.items()), ""]
        return "\n".join(lines)

    def on(self, device: str, precision: str) -> "Job":
        """The same on a device, in a precision."""
        return replace(
            self,
            cluster={**self.cluster, "device": device},
            train={**self.train, "precision": precision},
        )

    def within(self, **cluster: Any) -> "Job":
        """The same with other keys of `[cluster]`."""
        return replace(self, cluster={**self.cluster, **cluster})

    def trained(self, **train: Any) -> "Job":
        """The same with other keys of `[train]`."""
        return replace(self, train={**self.train, **train})

    @property
    def microbatches(self) -> int:
        """In a step of one pipeline."""
        pipelines = self.cluster.get("pipelines", 1)
        return int(self.train["batch"] // self.train["microbatch"] // pipelines)


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)


def gpt(*, small: bool, layers: int = 4, width: int = 256, steps: int = 12) -> Job:
    """The GPT of the check of bits, in four stages. `small`: one that a CPU trains in seconds."""
    if small:
        model = {"layers": 4, "width": 32, "heads": 2, "context": 32, "dropout": 0.1}
        train = {"steps": 4, "batch": 8, "microbatch": 2}
        return Job(model=model, train=train, cluster=_CLUSTER, data={"max_bytes": 200_000})
    heads = max(width // 64, 1)
    return Job(
        model={"layers": layers, "width": width, "heads": heads, "context": 256, "dropout": 0.1},
        train={"steps": steps, "batch": 16, "microbatch": 2},
        cluster=_CLUSTER,
    )


def llama(*, small: bool) -> Job:
    """A Llama by its shape, small enough to compare its bits in seconds."""
    if small:
        return shape("llama-1b", small=True)
    return Job(
        model={"model": LLAMA, "layers": 4, "width": 512, "heads": 8, "context": 256},
        train={"steps": 12, "batch": 16, "microbatch": 2},
        cluster=_CLUSTER,
    )


_CLUSTER = {
    "stages": 4,
    "redundancy": "eager",
    "forming_timeout_s": 240.0,
    "step_timeout_s": 120.0,
}


def shape(name: str, *, small: bool) -> Job:
    """A model by its published shape: the layers of GPT-2 medium, BERT-large or a Llama of 1 B
    parameters. Tokens are bytes, so embedding and head are smaller than the published ones."""
    if small:
        small_model = {"layers": 2, "width": 64, "heads": 2, "context": 32}
        own = {"model": LLAMA} if name == "llama-1b" else {}
        return Job(
            model={**own, **small_model},
            train={"batch": 4, "microbatch": 2, "steps": 6},
            cluster=_CLUSTER | {"stages": 2},
            data={"max_bytes": 200_000},
        )
    model, microbatch = {
        "12x1024": ({"layers": 12, "width": 1024, "heads": 16, "context": 1024}, 4),
        "24x2048": ({"layers": 24, "width": 2048, "heads": 16, "context": 1024}, 4),
        "gpt2-medium": ({"layers": 24, "width": 1024, "heads": 16, "context": 1024}, 4),
        "bert-large": ({"layers": 24, "width": 1024, "heads": 16, "context": 512}, 8),
        "llama-1b": (
            {"model": LLAMA, "layers": 16, "width": 2048, "heads": 32, "context": 2048},
            2,
        ),
    }[name]
    return Job(
        model={**model, "dropout": 0.0},
        train={"batch": 4 * microbatch, "microbatch": microbatch, "steps": 100},
        cluster=_CLUSTER,
        data={"max_bytes": 8_000_000},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Killed:
    """A run with several kills, and how many there are."""

    job: Job
    kills: int


def with_kills(job: Job, *, turn: int, spacing: int, phases: Iterable[str] = PHASES) -> Killed:
    """The job with one kill for each phase, `spacing` steps from each other, each at another stage
    than the one before. Over as many turns as there are stages, each phase meets each stage."""
    stages, step, kills = job.cluster["stages"], spacing, []
    for number, phase in enumerate(phases):
        kill = {"step": step, "stage": (turn + number) % stages, "phase": phase}
        if phase in ("forward", "backward"):
            kill["microbatch"] = (turn + number) % job.microbatches
        kills.append(kill)
        step += spacing
    return Killed(
        job=replace(job.trained(steps=step + spacing // 2 + 1), kills=tuple(kills)),
        kills=len(kills),
    )
