"""Random workloads: layers with several tensors between them, data whose samples differ in length,
parameters of all sorts, optimizers, schedules and groups, each drawn from a seed.

    model = "<this file>:build"             the workload of `train.seed`
    train.optimizer = "<this file>:make"    an optimizer of one's own
    train.schedule = "<this file>:rate"     a schedule of one's own

Rule: a recipe is drawn first, from Python's generator alone, and then built. So every process makes
the same workload, and a seed that fails can be looked at. Shapes: B samples of a microbatch, T the
longest of them, which differs from one microbatch to the next; W width; V vocabulary.
"""

import hashlib
import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bamboo.config.tree import Group, JobConfig, TrainConfig
from bamboo.models import TiedParameter, Workload
from bamboo.topology.sync import DENSE, FACTORS, OWNER, ROWS, TREE, ZONED, Sync, SyncRule

VOCABULARY = 11
LONGEST = 6
WIDTHS = (3, 4, 5)
SAMPLES = 29
MICROBATCHES_KEPT = 64
"""A run of the tests uses each of its microbatches under every cut."""
WORKING = ("block", "branch", "merge")
"""Operations with a product, a norm, dropout and perhaps a residual."""
PLAIN = ("mask", "drop", "unused", "cast", "turn", "number", "scale")
NORMS = ("none", "layer", "batch")
FLOATING = ("float16", "bfloat16", "float64")
WHOLE = ("int64", "int32", "uint8", "bool")
OPTIMIZERS = ("adamw", "adam", "sgd", "adagrad", "rmsprop", "adafactor")
SCHEDULES = ("cosine", "linear", "constant")
BUCKETS = (None, 0, 60, 400)
"""Bytes: a stage in one bucket, a layer in each, or some layers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one layer does with the tensors that it takes. Numbers are places in the tuple."""

    operation: str
    place: int = 0
    other: int = 0
    width: int = 0
    """Of the tensor at `place`."""
    other_width: int = 0
    numbers: int = 0
    """How many tensors of whole numbers it takes."""
    number: int = 0
    """The place, among those, of the one that it uses."""
    dtype: str = ""
    """Of the tensor that a cast or a number returns."""
    norm: str = "none"
    dropout: float = 0.0
    residual: bool = False
    frozen: str = ""
    """`` or `fp32` or `bf16`: the products of the layer are not trained."""
    buffers: bool = False
    """Whether a working layer has constant buffers: random ones, of bool, made on each node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A whole workload before it is built."""

    steps: tuple[Step, ...]
    head: Step
    weighted: bool
    """Whether samples weigh as much as they have labels, or 1 each."""
    masked_output: bool
    """Whether the last layer hands the mask to the loss."""
    tied: tuple[tuple[int, int], ...] = ()
    """Pairs of layers whose product is one parameter; (0, last) ties the embedding to the head."""


def drawn(seed: int) -> Recipe:
    """The recipe of a seed."""
    draw = random.Random(f"workload {seed}")
    first = draw.choice(WIDTHS)
    widths: list[int] = [first]  # of the floating tensors, which come before the mask
    steps: list[Step] = []
    for _ in range(draw.choice((1, 1, 1, 2, 2, 2, 3, 3, 4))):  # each one doubles the cuts
        numbers = sum(step.operation == "number" for step in steps)
        steps.append(_drawn_step(draw, widths, numbers))
    ties: list[tuple[int, int]] = []
    products = {n: _product_of(step) for n, step in enumerate(steps, 1) if _product_of(step)}
    for one, other in itertools.combinations(products, 2):
        free = not any(other in pair or one in pair[1:] for pair in ties)
        if products[one] == products[other] and free and draw.random() < 0.7:
            ties.append((one, other))
    place = draw.randrange(len(widths))
    numbers = sum(step.operation == "number" for step in steps)
    head = Step(operation="head", place=place, width=widths[place], numbers=numbers)
    if widths[place] == first and draw.random() < 0.3:
        ties.append((0, len(steps) + 1))
    return Recipe(
        steps=(Step(operation="embed", width=first), *steps),
        head=head,
        weighted=draw.random() < 0.7,
        masked_output=draw.random() < 0.5,
        tied=tuple(ties),
    )


def _drawn_step(draw: random.Random, widths: list[int], numbers: int) -> Step:
    """A step that fits these tensors; it changes `widths` to those that it returns."""
    possible = [
        name
        for name in (*WORKING, *PLAIN)
        if (name not in ("merge", "drop") or len(widths) > 1)
        and (name not in ("branch", "unused") or len(widths) < 3)
        and (name != "number" or numbers < 2)
        and (name != "scale" or numbers)
    ]
    name = draw.choice(possible)
    place = draw.randrange(len(widths))
    other = draw.choice([i for i in range(len(widths)) if i != place] or [place])
    step = Step(
        operation=name,
        place=place,
        other=other,
        width=widths[place],
        other_width=widths[other],
        numbers=numbers,
        number=draw.randrange(max(numbers, 1)),
        dtype=draw.choice(FLOATING if name == "cast" else WHOLE),
        norm=draw.choice(NORMS),
        dropout=draw.choice((0.0, 0.2)),
        residual=draw.random() < 0.5,
        frozen=draw.choice(("", "", "fp32", "bf16")),
        buffers=draw.random() < 0.3,
    )
    if name in ("branch", "unused"):
        widths.append(step.width)
    elif name in ("merge", "drop"):
        del widths[other]
    return step


def _product_of(step: Step) -> tuple[int, int, str] | None:
    """What two layers have in common that can share the weight of their products."""
    if step.operation not in (*WORKING, "unused"):
        return None
    given = step.other_width if step.operation == "merge" else step.width
    return given, step.width, step.frozen


def parameters(recipe: Recipe) -> dict[str, bool]:
    """Global name of each parameter -> whether the layers train it."""
    found = {"0.tokens.weight": True}
    for number, step in enumerate(recipe.steps):
        if step.operation in (*WORKING, "unused"):
            found |= dict.fromkeys(
                (f"{number}.product.weight", f"{number}.product.bias"), not step.frozen
            )
        if step.operation in WORKING and step.norm != "none":
            found |= dict.fromkeys((f"{number}.norm.weight", f"{number}.norm.bias"), True)
    return found | {f"{len(recipe.steps)}.product.weight": True}


# ---------------------------------------------------------------- how it is trained


def drawn_training(draw: random.Random) -> dict[str, Any]:
    """Keys of [train]: an optimizer with its own keys, and a schedule."""
    optimizer = draw.choice((*OPTIMIZERS, f"{__file__}:make"))
    momentum = draw.choice((0.0, 0.9)) if optimizer in ("sgd", "rmsprop") else 0.0
    return {
        "optimizer": optimizer,
        "momentum": momentum,
        "nesterov": optimizer == "sgd" and momentum > 0 and draw.random() < 0.5,
        "schedule": draw.choice((*SCHEDULES, f"{__file__}:rate")),
        "learning_rate": draw.choice((1e-3, 1e-2)),
        "weight_decay": draw.choice((0.0, 0.1)),
    }


def drawn_groups(draw: random.Random, recipe: Recipe) -> tuple[Group, ...]:
    """Up to two [[train.group]] that a launch accepts for this recipe."""
    names = parameters(recipe)
    ties = tied_names(recipe)
    left, groups = dict(names), []  # what no group matches yet
    # The loss depends on the embedding and on the head, so one of them is trained.
    trained = {"0.tokens.weight", f"{len(recipe.steps)}.product.weight"}
    patterns = sorted({"*.weight", "*.bias", "*.product.*", "*.norm.*", "0.*", *names})
    patterns += [f"[{owner}{user}].*.weight" for owner, user in recipe.tied]
    for _ in range(draw.choice((0, 0, 1, 2))):
        fits = []
        for pattern in patterns:
            matched = {name for name in names if fnmatchcase(name, pattern)}
            whole = all((owner in matched) == (user in matched) for owner, user in ties)
            if whole and matched <= left.keys() and any(names[name] for name in matched):
                fits.append((pattern, matched))
        if not fits:
            break
        pattern, matched = draw.choice(fits)
        left = {name: trained for name, trained in left.items() if name not in matched}
        own = {"weight_decay": draw.choice((0.0, 0.3)), "learning_rate_factor": 0.5}
        keys = [set(own), {"weight_decay"}, {"learning_rate_factor"}]
        if trained - matched:
            keys += [set(), set()]
        chosen = draw.choice(keys)
        trained -= set() if chosen else matched
        kept = {key: value for key, value in own.items() if key in chosen}
        groups.append(Group(match=pattern, frozen=not chosen, **kept))
    return tuple(groups)


def trained_names(recipe: Recipe, groups: Sequence[Group]) -> set[str]:
    """Of what a job with these groups trains."""
    frozen = [group.match for group in groups if group.frozen]
    return {
        name
        for name, trained in parameters(recipe).items()
        if trained and not any(fnmatchcase(name, pattern) for pattern in frozen)
    }


def drawn_sync(
    draw: random.Random, recipe: Recipe, groups: Sequence[Group], pipelines: int
) -> Sync:
    """Rules that a launch accepts for this recipe on so many pipelines: any kinds that suit what
    they match, any owners, buckets and zones."""
    names = trained_names(recipe, groups)
    left = set(names)
    rules: list[SyncRule] = []
    for _ in range(draw.randint(0, 6)):
        patterns = ("*.product.*", "*.bias", "*.norm.*", "0.*", *sorted(left))
        matched = {p: {name for name in names if fnmatchcase(name, p)} for p in patterns}
        fits = [p for p in patterns if matched[p] and matched[p] <= left]
        if not fits:
            break
        pattern = draw.choice(fits)
        left -= matched[pattern]
        rules.append(_drawn_rule(draw, recipe, pattern, matched[pattern], pipelines))
    zones = tuple(draw.randrange(3) for _ in range(pipelines))
    return Sync(rules=tuple(rules), bucket=draw.choice(BUCKETS), zones=draw.choice((zones, ())))


def _drawn_rule(
    draw: random.Random, recipe: Recipe, pattern: str, matched: set[str], pipelines: int
) -> SyncRule:
    exchanges, ships = [TREE, OWNER, ZONED], [DENSE]
    if not any(name.endswith((".bias", ".norm.weight")) for name in matched):
        exchanges += [ROWS] * 2
        ships += [ROWS] * 2
    if matched <= _plain_weights(recipe):
        exchanges += [FACTORS] * 4
        ships += [FACTORS] * 3
    exchange = draw.choice(exchanges)
    owners = tuple(draw.randrange(pipelines + 1) for _ in range(draw.randint(1, 2)))
    return SyncRule(
        match=pattern,
        exchange=exchange,
        ship=draw.choice(ships),
        owners=owners if exchange == OWNER else (),
        bucket=draw.choice(BUCKETS),
    )


def _plain_weights(recipe: Recipe) -> set[str]:
    """Weights of linear layers that one matrix product uses once in a microbatch."""
    steps = (*recipe.steps, recipe.head)
    tied = {name for pair in tied_names(recipe) for name in pair}
    products = {
        f"{number}.product.weight"
        for number, step in enumerate(steps)
        if step.operation in (*WORKING, "head") and not step.frozen
    }
    return products - tied


def tied_names(recipe: Recipe) -> list[tuple[str, str]]:
    """(Owner's global name, user's) of each tie."""
    return [(f"{i}.{_tied_name(i)}", f"{j}.{_tied_name(j)}") for i, j in recipe.tied]


def _tied_name(layer: int) -> str:
    return "product.weight" if layer else "tokens.weight"


class Scaled:
    """An optimizer of one's own: a mean of gradients by the largest that there was."""

    def state(self, shape: torch.Size) -> dict[str, tuple[int, ...]]:
        """One of the parameter's shape, one number."""
        return {"mean": tuple(shape), "largest": (1,)}

    def step(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor],
        states: Sequence[Mapping[str, Tensor]],
        *,
        lr: float,
        weight_decay: float,
        step: int,
    ) -> None:
        """See `bamboo.models.Optimizer`."""
        for parameter, grad, state in zip(params, grads, states, strict=True):
            state["mean"].lerp_(grad, 0.5)
            state["largest"].copy_(torch.maximum(state["largest"], grad.abs().max()))
            update = state["mean"] / (state["largest"] + 1e-8)
            parameter.mul_(1.0 - lr * weight_decay).add_(update, alpha=-lr / (1.0 + step))


def make(train: TrainConfig) -> Scaled:
    """The optimizer of one's own."""
    del train
    return Scaled()


def rate(step: int, steps: int, train: Any) -> float:
    """The schedule of one's own: up and down, and less each time."""
    height = float(train.learning_rate) * (1 + step % 2) / (1 + step)
    return max(height, float(train.final_learning_rate) / steps)


# ---------------------------------------------------------------- layers


class Layer(nn.Module):
    """One step of a recipe. It takes (floating tensors of shape B, T, W ..., mask of shape B, T,
    whole numbers of shape B, T ...), the first layer (tokens, mask), and returns tensors of the
    same kinds."""

    def __init__(self, step: Step, *, masked_output: bool = True) -> None:
        super().__init__()
        self.step = step
        self.masked_output = masked_output
        width = step.width
        if step.operation == "embed":
            self.tokens = nn.Embedding(VOCABULARY, width)
            self.register_buffer("scale", torch.linspace(0.5, 1.5, width))
        elif step.operation == "head":
            self.product = nn.Linear(width, VOCABULARY, bias=False)
        elif step.operation == "merge":
            self.product = nn.Linear(step.other_width, width)
        elif step.operation in (*WORKING, "unused"):
            self.product = nn.Linear(width, width)
        if step.operation in WORKING:
            self.norm = _norm(step.norm, width)
        if step.operation in WORKING and step.buffers:
            self.register_buffer("shift", torch.rand(width))
            self.register_buffer("kept", torch.arange(width) != 1)
            self.register_buffer("made", torch.full((width,), 0.75), persistent=False)
            self.shift: Tensor
            self.kept: Tensor
            self.made: Tensor
        if step.frozen and hasattr(self, "product"):
            self.product.requires_grad_(requires_grad=False)
            if step.frozen == "bf16":
                self.product.to(torch.bfloat16)

    def forward(self, tensors: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        step, floating = self.step, len(tensors) - 1 - self.step.numbers
        held, mask, numbers = [*tensors[:floating]], tensors[floating], [*tensors[floating + 1 :]]
        if step.operation == "embed":
            return self.tokens(held[0]) * self.scale, mask
        x = held[step.place]
        if step.operation == "head":
            logits = self._times(x.float())
            return (logits, mask) if self.masked_output else logits
        if step.operation == "block":
            held[step.place] = self._worked(x, x)
        elif step.operation == "branch":
            held.append(self._worked(x, x))
        elif step.operation == "unused":
            held.append(self._times(x.float()))
        elif step.operation == "merge":
            held[step.place] = self._worked(x, held[step.other])
            del held[step.other]
        elif step.operation == "mask":
            held[step.place] = x * mask.unsqueeze(-1)
        elif step.operation == "drop":
            del held[step.other]
        elif step.operation == "cast":
            held[step.place] = x.to(getattr(torch, step.dtype))
        elif step.operation == "turn":
            # Another layout than the one that a receiver has, and values that are used twice.
            held[step.place] = x.transpose(0, 1).flip(0).transpose(0, 1) + x
        elif step.operation == "number":
            numbers.append((mask.cumsum(1) % 3).to(getattr(torch, step.dtype)))
        elif step.operation == "scale":
            held[step.place] = x * (0.5 + numbers[step.number].float()).unsqueeze(-1)
        return (*held, mask, *numbers)

    def _worked(self, x: Tensor, other: Tensor) -> Tensor:
        y = torch.tanh(self._times(other.float()))
        y = self.norm(y.flatten(0, 1)).view(y.shape)  # a batch norm is over all tokens
        y = F.dropout(y, self.step.dropout, self.training)
        if self.step.buffers:
            y = torch.where(self.kept, y * self.made, self.shift)
        return x.float() + y if self.step.residual else y

    def _times(self, x: Tensor) -> Tensor:
        if self.product.weight.dtype is torch.float32:
            out: Tensor = self.product(x)
            return out
        bias = self.product.bias
        return F.linear(x, self.product.weight.float(), None if bias is None else bias.float())


def _norm(kind: str, width: int) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    return nn.LayerNorm(width) if kind == "layer" else nn.BatchNorm1d(width, momentum=0.3)


class Sentences:
    """Random tokens of random lengths; a label is the token itself plus the sample's number. Some
    samples have no label at all."""

    samples = SAMPLES
    unit = "token"

    def __init__(self, seed: int, *, weighted: bool) -> None:
        draw = random.Random(f"sentences {seed}")
        self._weighted = weighted
        self._tokens = [
            [draw.randrange(VOCABULARY) for _ in range(draw.randint(2, LONGEST))]
            for _ in range(SAMPLES)
        ]
        self._labels = [draw.randint(int(n % 2), len(t)) for n, t in enumerate(self._tokens)]
        said = repr((self._tokens, self._labels, weighted))
        self.digest = hashlib.sha256(said.encode()).hexdigest()
        self._made = lru_cache(MICROBATCHES_KEPT)(self._make)

    def batch(
        self, indices: Sequence[int], keys: Sequence[int]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """((tokens_BT int64, mask_BT bool), (labels_BT int64, weights_BT)); a token in ten, as
        the sample's key decides, is 0, and the mask leaves out tokens of 0."""
        tokens_BT, mask_BT, labels_BT, weights_BT = (
            tensor.clone() for tensor in self._made(tuple(indices), tuple(keys))
        )
        return (tokens_BT, mask_BT), (labels_BT, weights_BT)

    def _make(self, indices: Sequence[int], keys: Sequence[int]) -> tuple[Tensor, ...]:
        longest = max(len(self._tokens[i]) for i in indices)
        tokens_BT = torch.zeros(len(indices), longest, dtype=torch.int64)
        mask_BT = torch.zeros(len(indices), longest, dtype=torch.bool)
        weights_BT = torch.zeros(len(indices), longest)
        for row, (index, key) in enumerate(zip(indices, keys, strict=True)):
            own, labels = self._tokens[index], self._labels[index]
            draw = random.Random(key)
            tokens_BT[row, : len(own)] = torch.tensor(
                [0 if draw.random() < 0.1 else t for t in own]
            )
            mask_BT[row] = tokens_BT[row] > 0
            weights_BT[row, :labels] = 1.0 if self._weighted else 1.0 / max(labels, 1)
        numbers_B1 = torch.tensor(list(indices)).unsqueeze(1)
        return tokens_BT, mask_BT, (tokens_BT + numbers_B1) % VOCABULARY, weights_BT

    def count(self, index: int, key: int) -> int:
        """A sample's labels, or 1."""
        del key
        return self._labels[index] if self._weighted else 1


def weighted_loss(outputs: Tensor | tuple[Tensor, ...], targets: tuple[Tensor, ...]) -> Tensor:
    """Cross entropy, summed over what has a weight; a mask in the outputs counts too."""
    logits_BTV, *mask = outputs if isinstance(outputs, tuple) else (outputs,)
    labels_BT, weights_BT = targets
    each_BT = F.cross_entropy(logits_BTV.float().transpose(1, 2), labels_BT, reduction="none")
    if mask:
        weights_BT = weights_BT * mask[0]
    return (each_BT * weights_BT).sum()


def workload_of(recipe: Recipe, data: Sentences) -> Workload:
    """Build a recipe."""
    layers = [
        *(partial(Layer, step) for step in recipe.steps),
        partial(Layer, recipe.head, masked_output=recipe.masked_output),
    ]
    ties = tuple(
        TiedParameter(
            owner_layer=owner,
            owner_name=_tied_name(owner),
            user_layer=user,
            user_name=_tied_name(user),
        )
        for owner, user in recipe.tied
    )
    return Workload(layers=tuple(layers), loss=weighted_loss, tied=ties, data=data)


def build(job: JobConfig) -> Workload:
    """The workload of the job's seed."""
    recipe = drawn(job.train.seed)
    return workload_of(recipe, Sentences(job.train.seed, weighted=recipe.weighted))
