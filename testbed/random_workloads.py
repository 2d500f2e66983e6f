"""Random workloads: layers with several tensors between them, data whose samples differ in length,
parameters of all sorts, each drawn from a seed.

    model = "<this file>:build"     the workload of `train.seed`

Rule: a recipe is drawn first, from Python's generator alone, and then built. So every process makes
the same workload, and a seed that fails can be looked at. Shapes: B samples of a microbatch, T the
longest of them, which differs from one microbatch to the next; W width; V vocabulary.
"""

import hashlib
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bamboo.config.tree import JobConfig
from bamboo.models import TiedParameter, Workload

VOCABULARY = 11
LONGEST = 6
WIDTHS = (3, 4, 5)
SAMPLES = 29
OPERATIONS = ("block", "branch", "merge", "mask", "drop", "unused", "narrow", "shorten")
NORMS = ("none", "layer", "batch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one layer does with the tensors that it takes. Numbers are places in the tuple."""

    operation: str
    place: int = 0
    other: int = 0
    width: int = 0
    """Of the tensor at `place`."""
    other_width: int = 0
    norm: str = "none"
    dropout: float = 0.0
    residual: bool = False
    frozen: str = ""
    """`` or `fp32` or `bf16`: the products of the layer are not trained."""


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
    widths: list[int] = [first]  # of the float tensors; the mask comes after all of them
    steps: list[Step] = []
    for _ in range(draw.randint(1, 4)):
        steps.append(_drawn_step(draw, widths))
    ties: list[tuple[int, int]] = []
    blocks = [n + 1 for n, s in enumerate(steps) if s.operation == "block" and not s.frozen]
    for i, one in enumerate(blocks):
        for other in blocks[i + 1 :]:
            free = not any(other in pair or one in pair[1:] for pair in ties)
            if steps[one - 1].width == steps[other - 1].width and free and draw.random() < 0.5:
                ties.append((one, other))
    place = draw.randrange(len(widths))
    head = Step(operation="head", place=place, width=widths[place])
    if widths[place] == first and draw.random() < 0.3:
        ties.append((0, len(steps) + 1))
    return Recipe(
        steps=(Step(operation="embed", width=first), *steps),
        head=head,
        weighted=draw.random() < 0.7,
        masked_output=draw.random() < 0.5,
        tied=tuple(ties),
    )


def _drawn_step(draw: random.Random, widths: list[int]) -> Step:
    """A step that fits these tensors, which it changes to those that it returns."""
    possible = [
        name
        for name in OPERATIONS
        if (name not in ("merge", "drop") or len(widths) > 1)
        and (name not in ("branch", "unused") or len(widths) < 3)
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
        norm=draw.choice(NORMS),
        dropout=draw.choice((0.0, 0.2)),
        residual=draw.random() < 0.5,
        frozen=draw.choice(("", "", "fp32", "bf16")),
    )
    if name in ("branch", "unused"):
        widths.append(step.width)
    elif name in ("merge", "drop"):
        del widths[other]
    return step


class Layer(nn.Module):
    """One step of a recipe. It takes (float tensors of shape B, T, W ..., mask of shape B, T), the
    first layer (tokens, mask), and returns tensors of the same kind."""

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
        elif step.operation in ("block", "branch", "unused"):
            self.product = nn.Linear(width, width)
        elif step.operation == "merge":
            self.product = nn.Linear(step.other_width, width)
        if step.operation in ("block", "branch", "merge"):
            self.norm = _norm(step.norm, width)
        if step.frozen and hasattr(self, "product"):
            self.product.requires_grad_(requires_grad=False)
            if step.frozen == "bf16":
                self.product.to(torch.bfloat16)

    def forward(self, tensors: tuple[Tensor, ...]) -> Tensor | tuple[Tensor, ...]:
        step, (*held, mask) = self.step, tensors
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
        elif step.operation == "narrow":
            held[step.place] = x.to(torch.float16 if step.residual else torch.float64)
        elif step.operation == "shorten":
            # Another layout than the one that a receiver has, and values that are used twice.
            held[step.place] = x.transpose(0, 1).flip(0).transpose(0, 1) + x
        return (*held, mask)

    def _worked(self, x: Tensor, other: Tensor) -> Tensor:
        y = torch.tanh(self._times(other.float()))
        y = self.norm(y.flatten(0, 1)).view(y.shape)  # a batch norm is over all tokens
        y = F.dropout(y, self.step.dropout, self.training)
        return x.float() + y if self.step.residual else y

    def _times(self, x: Tensor) -> Tensor:
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

    def batch(
        self, indices: Sequence[int], keys: Sequence[int]
    ) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        """((tokens_BT int64, mask_BT bool), (labels_BT int64, weights_BT)); a token in ten, as
        the sample's key decides, is 0, and the mask leaves out tokens of 0."""
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
        return (tokens_BT, mask_BT), ((tokens_BT + numbers_B1) % VOCABULARY, weights_BT)

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
            owner_name="tokens.weight" if owner == 0 else "product.weight",
            user_layer=user,
            user_name="product.weight",
        )
        for owner, user in recipe.tied
    )
    return Workload(layers=tuple(layers), loss=weighted_loss, tied=ties, data=data)


def build(job: JobConfig) -> Workload:
    """The workload of the job's seed."""
    recipe = drawn(job.train.seed)
    return workload_of(recipe, Sentences(job.train.seed, weighted=recipe.weighted))


def without(recipe: Recipe, **changes: object) -> Recipe:
    """The recipe with changed fields, for planted faults."""
    return replace(recipe, **changes)  # type: ignore[arg-type]
