"""Which values of the tree are possible, alone and together. One error at a time, one line each.

Rule: everything that can be checked without torch and without machines is refused here.
"""

import difflib
import itertools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from bamboo.config.check_autoscale import check_autoscale
from bamboo.config.check_cloud import check_cloud
from bamboo.config.check_data import MAKE_OWN, NAME_TEXT, check_data
from bamboo.config.check_eval import check_eval
from bamboo.config.check_hf import check_hf, check_hf_folder
from bamboo.config.check_train import check_optimizer, check_own
from bamboo.config.resolve import batch_shape
from bamboo.config.tree import LIVE, JobConfig, Kill
from bamboo.errors import InputError
from bamboo.ids import REGION
from bamboo.named_files import what_is_wrong
from bamboo.planner.fleet.fleet_size import UTILITIES
from bamboo.topology.strategy import (
    AUTO,
    BARE_MODES,
    DEVICE,
    HOST,
    LAYER,
    OFF,
    SPREADS,
    wrong_with,
)
from bamboo.topology.sync import BUILDERS
from bamboo.topology.virtual_nodes import blocks, evaluated_by

TRACKERS = ("tensorboard", "trackio", "wandb", "mlflow", "otlp")
"""What a run can be logged to, by the name of the extra that brings its library."""
PHASES = ("forward", "backward", "exchange", "ship", "step", "evaluation")
CHOICES: dict[str, tuple[str, ...]] = {
    "model.split": ("layers", "trace"),
    "train.precision": ("fp32", "bf16"),
    "cluster.recompute": (AUTO, OFF, LAYER),
    "cluster.spread": (AUTO, *SPREADS),
    "cluster.replica_moments": (AUTO, DEVICE, HOST),
    "cluster.device": (AUTO, "cpu", "virtual", "cuda", "lagging"),
    "cluster.search": ("off", LIVE),
    "cluster.transport": ("ipc", "tcp"),
    "cloud.provider": ("local", "ec2"),
    "cloud.prefer": ("price", "value"),
    "cloud.market": ("spot", "on-demand"),
    "autoscale.utility": UTILITIES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """Bounds of a number."""

    least: float
    most: float = math.inf
    open_least: bool = False
    """The lower bound itself is not allowed."""
    open_most: bool = False

    def holds(self, value: float) -> bool:
        above = value > self.least if self.open_least else value >= self.least
        return above and (value < self.most if self.open_most else value <= self.most)

    def words(self) -> str:
        lower = f"above {self.least:g}" if self.open_least else f"at least {self.least:g}"
        if self.most == math.inf:
            return lower
        return f"{lower} and {'below' if self.open_most else 'at most'} {self.most:,.16g}"


DAY_S = 86_400
MONTH_S = 30 * DAY_S
_SCHEME = re.compile(r"[A-Za-z0-9+.-]+:")
_TYPE = re.compile(r"[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^/\s]+)*/?")
MOST_FORWARDS = 100_000
"""Forwards of a step over all stages: the plan simulates each one, some thousands a second."""
# Upper bounds are far beyond use: they keep a typing error from endless costs.
_COUNT = Range(least=1, most=1_000_000)
_STEPS_FROM_0 = Range(least=0, most=1e9)
_SEED = Range(least=0, most=2**53)  # every JSON reader keeps whole numbers up to this one
_HOURS = Range(least=0, most=10 * 365 * 24)
_NODES = Range(least=0, most=1_000_000)
_FROM_0 = Range(least=0)
_ABOVE_0 = Range(least=0, open_least=True)
_BELOW_1 = Range(least=0, most=1, open_most=True)
_LEASE_S = Range(least=0, most=DAY_S, open_least=True)
_LIMIT_S = Range(least=0, most=MONTH_S, open_least=True)
_MS = Range(least=0, most=3_600_000)
RANGES: dict[str, Range] = {
    "model.layers": Range(least=1, most=10_000),
    "model.width": _COUNT,
    "model.heads": _COUNT,
    "model.context": _COUNT,
    "model.vocabulary": Range(least=2, most=100_000_000),
    "model.dropout": _BELOW_1,
    "data.max_bytes": Range(least=0, most=1e12),
    "train.steps": Range(least=1, most=1e9),
    "train.batch": _COUNT,
    "train.microbatch": _COUNT,
    "train.virtual_nodes": Range(least=0, most=1_000_000),
    "train.seed": _SEED,
    "train.learning_rate": _ABOVE_0,
    "train.warmup_steps": _STEPS_FROM_0,
    "train.final_learning_rate": _FROM_0,
    "train.weight_decay": _FROM_0,
    "train.beta1": _BELOW_1,
    "train.beta2": _BELOW_1,
    "train.epsilon": _ABOVE_0,
    "train.momentum": _BELOW_1,
    "train.clip_norm": _FROM_0,
    "eval.every_steps": _STEPS_FROM_0,
    "eval.samples": Range(least=0, most=1e9),
    "cluster.pipelines": Range(least=1, most=1024),
    "cluster.max_pipelines": Range(least=0, most=1024),
    "cluster.stages": Range(least=1, most=1024),
    "cluster.standbys": Range(least=0, most=1024),
    "cluster.threads": Range(least=1, most=1024),
    "cluster.virtual_forward_ms": _MS,
    "cluster.virtual_backward_ms": _MS,
    "cluster.virtual_speeds": Range(least=0.01, most=100),
    "cluster.virtual_link_gbps": _FROM_0,
    "cluster.virtual_link_latency_ms": _MS,
    "cluster.beat_ms": Range(least=10, most=60_000),
    "cluster.suspect_s": _LEASE_S,
    "cluster.gone_s": _LEASE_S,
    "cluster.forming_timeout_s": _LIMIT_S,
    "cluster.step_timeout_s": _LIMIT_S,
    "cluster.patience_s": Range(least=0, most=MONTH_S),
    "cluster.park_s": _LIMIT_S,
    "checkpoint.every_steps": _STEPS_FROM_0,
    "checkpoint.keep": _COUNT,
    "checkpoint.keep_hours": _HOURS,
    "cloud.anchors": Range(least=0, most=1024),
    "cloud.pool_out_s": Range(least=0, most=DAY_S),
    "cloud.gang_s": _LIMIT_S,
    "cloud.boot_s": Range(least=0, most=3600),
    "chaos.seed": _SEED,
    "chaos.kills_per_hour": Range(least=0, most=36_000),
    "chaos.notice_share": Range(least=0, most=1),
    "chaos.notice_s": Range(least=0, most=DAY_S),
    "budget.max_usd": Range(least=0, most=1e12),
    "budget.max_hours": _HOURS,
    "budget.max_instances": Range(least=0, most=1_000_000),
    "autoscale.min_nodes": _NODES,
    "autoscale.max_nodes": _NODES,
    "autoscale.marginal": Range(least=0, most=1, open_most=True),
    "autoscale.utility_usd": Range(least=0, most=1e12),
    "autoscale.deadline_hours": _HOURS,
    "autoscale.again_s": Range(least=0, most=DAY_S),
}


def check_values(job: JobConfig) -> None:
    """Check each value by itself, before the job is resolved.

    Raises InputError with the first impossible value.
    """
    for key, choices in CHOICES.items():
        value = _value(job, key)
        if value not in choices:
            raise _at(job, key, "is not possible", f"take one of {', '.join(choices)}")
    for key, bounds in RANGES.items():
        value = _value(job, key)
        if isinstance(value, str):
            if value != AUTO:
                raise _at(job, key, "is no number", f"give a whole number, or {AUTO!r}")
            continue
        for number in value if isinstance(value, tuple) else (value,):
            if not bounds.holds(number):
                raise _at(job, key, "is out of range", f"give a number {bounds.words()}")
    _redundancy(job)
    _sync(job)


def check_job(job: JobConfig) -> None:
    """Check the values of a resolved job together. Raises InputError with the first bad one."""
    for check in (
        check_own, check_hf, check_optimizer, _model, _data, _batch, check_eval, _grid,
        _virtual_device,
        _leases, _checkpoint, _cloud, _spread, _chaos, check_autoscale, check_cloud,
        _log,
    ):  # fmt: skip
        check(job)


def check_inputs(job: JobConfig) -> None:
    """Check that the files that a job names exist. Training needs them; reading or stopping a run
    does not. Raises InputError with the first one that is missing."""
    for key, value in job.own.items():
        if wrong := what_is_wrong(job.named(value.partition(":")[0])):
            raise _at(job, key, wrong, "correct the path")
    if (own := job.cluster.own_builder) and (wrong := what_is_wrong(job.named(own[0]))):
        raise _at(job, "cluster.sync", wrong, "correct the path")
    if job.model.is_hf:
        check_hf_folder(job)
    for key, is_folder in (("requirements", False), ("wheelhouse", True)):
        named = getattr(job.model, key)
        if named and (wrong := what_is_wrong(job.named(named), folder=is_folder)):
            raise _at(job, f"model.{key}", wrong, "correct the path")
    for key, data in (("data.path", job.data), ("eval.path", job.eval)):
        of_own = data.source in job.own.values()
        text = data.path if data.source == "path" or of_own else ""
        if text and (wrong := what_is_wrong(job.named(text), folder=True)):
            of_text = NAME_TEXT.replace("data", key.partition(".")[0])
            raise _at(job, key, wrong, MAKE_OWN if of_own else of_text)


def layer_count(job: JobConfig) -> int | None:
    """Layers of the model; None where only its file or folder knows their number."""
    return job.model.layers + 2 if job.model.is_gpt else None


def _redundancy(job: JobConfig) -> None:
    cluster = job.cluster
    wrong = None if cluster.redundancy == AUTO else wrong_with(cluster.redundancy, cluster.stages)
    if wrong is not None:
        raise _at(job, "cluster.redundancy", wrong[0], f"{wrong[1]}, or {AUTO}")
    most = max(cluster.pipelines, cluster.max_pipelines)
    if cluster.redundancy == "peer" and cluster.stages == most == 1:
        raise _at(
            job,
            "cluster.redundancy",
            "needs a second pipeline: with one stage and one pipeline, no peer holds the state",
            "raise cluster.pipelines or cluster.max_pipelines, or take off",
        )


def _sync(job: JobConfig) -> None:
    own, choice = job.cluster.own_builder, ", ".join(BUILDERS)
    if job.cluster.sync not in BUILDERS and own is None:
        problem, remedy = "is no builder", f'take one of {choice}, or "file.py:build"'
        raise _at(job, "cluster.sync", problem, remedy)
    if own is not None and not (own[0].endswith(".py") and own[1].isidentifier()):
        remedy = f'write "file.py:build", or one of {choice}'
        raise _at(job, "cluster.sync", "names no function of a Python file", remedy)


def _model(job: JobConfig) -> None:
    model = job.model
    if model.is_traced and not model.is_own:
        raise _at(
            job,
            "model.split",
            "is of a model in a file of yours",
            'leave it out, or name "file.py:f"',
        )
    if model.requirements and not job.brings:
        remedy = "leave it out, or name a model, data or an optimizer of yours"
        raise _at(job, "model.requirements", "is of your own code, and there is none", remedy)
    if model.wheelhouse and not model.requirements:
        remedy = "name what is installed from it in model.requirements, or leave it out"
        raise _at(job, "model.wheelhouse", "is of requirements, and there are none", remedy)
    if model.is_gpt and model.width % model.heads:
        raise _at(
            job, "model.heads", f"does not divide model.width = {model.width}", "take a divisor"
        )


def _data(job: JobConfig) -> None:
    check_data(job, job.data)


def _batch(job: JobConfig) -> None:
    train, pipelines = job.train, job.cluster.pipelines
    if train.virtual_nodes < pipelines:
        raise _at(
            job,
            "train.virtual_nodes",
            f"cannot feed cluster.pipelines = {pipelines}",
            "take fewer pipelines, or, in a new run, as many virtual nodes (0 for the default)",
        )
    unit = train.microbatch * train.virtual_nodes
    if train.batch % unit:
        raise _at(
            job,
            "train.batch",
            f"is no multiple of train.microbatch x virtual nodes = {train.microbatch} x "
            f"{train.virtual_nodes}",
            f"take {max(unit, train.batch // unit * unit)} or {(train.batch // unit + 1) * unit}"
            if train.batch > unit
            else f"take {unit}",
        )
    forwards = train.batch // train.microbatch * job.cluster.stages
    if forwards > MOST_FORWARDS:
        raise _at(
            job,
            "train.batch",
            f"in microbatches of {train.microbatch} makes {forwards:,} forwards a step over "
            f"{job.cluster.stages} stages",
            f"take a larger train.microbatch: at most {MOST_FORWARDS:,} forwards",
        )


def _grid(job: JobConfig) -> None:
    cluster, layers = job.cluster, layer_count(job)
    if layers is not None and cluster.stages > layers:
        raise _at(
            job,
            "cluster.stages",
            f"is more than the model's {layers} layers (embedding, {job.model.layers} blocks, "
            "head)",
            f"take at most {layers} stages or more model.layers",
        )
    cut = cluster.cut
    if not cut:
        return
    if len(cut) != cluster.stages:
        raise _at(
            job,
            "cluster.cut",
            f"names {len(cut)} first layers for {cluster.stages} stages",
            "give one first layer a stage, or leave it empty",
        )
    if cut[0] != 0 or any(b <= a for a, b in itertools.pairwise(cut)):
        raise _at(job, "cluster.cut", "does not grow from 0", "start with 0, each one larger")
    if layers is not None and cut[-1] >= layers:
        raise _at(
            job, "cluster.cut", f"goes past the last layer {layers - 1}", "keep within the layers"
        )


def _virtual_device(job: JobConfig) -> None:
    for key in ("cluster.virtual_forward_ms", "cluster.virtual_backward_ms"):
        if len(_value(job, key)) not in (1, job.cluster.stages):
            raise _at(
                job,
                key,
                f"gives {len(_value(job, key))} figures for {job.cluster.stages} stages",
                "give one figure, or one a stage",
            )


def _leases(job: JobConfig) -> None:
    cluster = job.cluster
    if cluster.suspect_s * 1000 <= cluster.beat_ms:
        raise _at(
            job,
            "cluster.suspect_s",
            f"is not longer than cluster.beat_ms = {cluster.beat_ms}",
            "let several beats pass before a node is suspect",
        )
    if cluster.gone_s < cluster.suspect_s:
        raise _at(
            job,
            "cluster.gone_s",
            f"is shorter than cluster.suspect_s = {cluster.suspect_s}",
            "take at least as long",
        )


def _checkpoint(job: JobConfig) -> None:
    """Checks the form alone; a launch finds out whether a directory can be written."""
    url = job.checkpoint.url
    if url != url.strip() or not url.isprintable():
        raise _at(job, "checkpoint.url", "has blanks around it or odd characters", "remove them")
    if _SCHEME.match(url) and not _BUCKET.fullmatch(url):
        raise _at(
            job,
            "checkpoint.url",
            "is neither a directory nor a bucket",
            "give a directory, or s3://bucket/prefix",
        )


def _cloud(job: JobConfig) -> None:
    for key in ("cloud.zones", "cloud.instance_types"):
        if not _value(job, key) or not all(_value(job, key)):
            raise _at(job, key, "names nothing", "name at least one")
    region = job.cloud.region
    if not REGION.fullmatch(region):
        raise _at(job, "cloud.region", "names no region", "name one, such as us-east-1")
    for name in job.cloud.instance_types:
        if not _TYPE.fullmatch(name):
            words = f"has {name!r}, which is no type of an instance"
            raise _at(job, "cloud.instance_types", words, "name one, such as g5.xlarge")
    if not all(re.fullmatch(rf"{region}[a-z0-9-]+", zone) for zone in job.cloud.zones):
        raise _at(
            job,
            "cloud.zones",
            f"are not all in cloud.region = {region!r}",
            f"name its zones, such as {region}a",
        )


def _spread(job: JobConfig) -> None:
    cluster, zones = job.cluster, set(job.cloud.zones)
    if cluster.spread in ("pipelines", "neighbours") and len(zones) < 2:
        raise _at(
            job,
            "cluster.spread",
            f"needs two zones, and cloud.zones names {len(zones)}",
            'name another zone, or take "one"',
        )
    if cluster.spread == "neighbours" and cluster.stages < 2:
        raise _at(
            job,
            "cluster.spread",
            "needs two stages: a pipeline of one has no neighbours",
            'take "one" or "pipelines"',
        )
    if cluster.spread == "pipelines" and cluster.max_pipelines < 2:
        raise _at(
            job,
            "cluster.spread",
            "needs two pipelines, and there is 1",
            'raise cluster.max_pipelines, or take "one"'
            + (' or "neighbours"' if cluster.stages > 1 else ""),
        )


def _chaos(job: JobConfig) -> None:
    shape = batch_shape(job)
    share = blocks(job.train.virtual_nodes, job.cluster.pipelines)
    for i, kill in enumerate(job.chaos.kill):
        # In this order, because the last bound needs an existing pipeline.
        bounds: tuple[tuple[str, int, Callable[[Kill], int]], ...] = (
            ("step", kill.step, lambda k: job.train.steps + (k.phase == "evaluation")),
            ("stage", kill.stage, lambda _: job.cluster.stages),
            ("pipeline", kill.pipeline, lambda _: job.cluster.pipelines),
            (
                "microbatch",
                kill.microbatch,
                lambda k: (
                    len(evaluated_by(share[k.pipeline], shape.virtual_nodes, shape.evaluated))
                    if k.phase == "evaluation"
                    else len(shape.microbatches_of(share[k.pipeline]))
                ),
            ),
        )
        for name, value, limit in bounds:
            if not 0 <= value < limit(kill):
                within = f"give 0 to {limit(kill) - 1}, or no kills (--set chaos.kill=[])"
                raise _kill(job, i, name, value, within)
        if kill.phase not in PHASES:
            raise _kill(job, i, "phase", kill.phase, f"take one of {', '.join(PHASES)}")
        every = job.eval.every_steps
        if kill.phase == "evaluation" and not (every and kill.step and kill.step % every == 0):
            raise _kill(job, i, "step", kill.step, "take one with an evaluation before it")
        if kill.phase == "ship" and job.cluster.redundancy in BARE_MODES:
            raise _kill(job, i, "phase", kill.phase, "nothing is shipped without shadows")
        if not 0 <= kill.notice_s <= DAY_S:
            raise _kill(job, i, "notice_s", kill.notice_s, f"give 0 (no notice) to {DAY_S:,}")


def _log(job: JobConfig) -> None:
    to = list(job.log.to)
    for number, name in enumerate(to):
        if name not in TRACKERS:
            near = difflib.get_close_matches(name, TRACKERS, n=1)
            meant = f"did you mean {near[0]!r}? There" if near else "there"
            remedy = f"{meant} are {', '.join(TRACKERS)}"
            raise _at(job, "log.to", f"has {name!r}, which is no tracker", remedy)
        if name in to[:number]:
            raise _at(job, "log.to", f"has {name!r} twice", "name each tracker once")
    project = job.log.project
    allowed = project.replace("-", "").replace("_", "").replace(".", "")
    if not (allowed.isascii() and allowed.isalnum() and len(project) <= 100):
        remedy = "take at most 100 letters, digits and .-_"
        raise _at(job, "log.project", "is no name that every tracker takes", remedy)


def _kill(job: JobConfig, index: int, name: str, value: object, remedy: str) -> InputError:
    return InputError.at(
        file=job.file,
        key=f"chaos.kill[{index}].{name}",
        value=value,
        problem="is not in this job",
        remedy=remedy,
    )


def _value(job: JobConfig, key: str) -> Any:
    section, _, name = key.partition(".")
    return getattr(getattr(job, section), name)


def _at(job: JobConfig, key: str, problem: str, remedy: str) -> InputError:
    value = _value(job, key)
    shown = list(value) if isinstance(value, tuple) else value
    return InputError.at(file=job.file, key=key, value=shown, problem=problem, remedy=remedy)
