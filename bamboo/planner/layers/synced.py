"""What the planner knows of each trained parameter, to choose how its gradient is synchronised.

Rule: these are facts of the model and the data; which kind suits a parameter is decided elsewhere.
The preflight finds them by running each layer once. For the built-in GPT they follow from its
shape.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import log, pow, prod

from bamboo.topology.shards import FLOAT_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterFacts:
    """One parameter. Raises ValueError for figures that make no sense."""

    name: str
    """Global: `<layer>.<name>`, as in files."""
    shape: tuple[int, ...]
    layer: int
    """Global index."""
    rows_k: int = 0
    """Rows of the linear layer's input in one microbatch; 0: it is no weight of a linear layer that
    one plain matrix product uses once in a microbatch."""
    why_not: str = ""
    """Where `rows_k` is 0, the use that forbids factors, as the rest of a sentence that begins with
    the parameter; empty for a plain weight."""
    density: float = 1.0
    """Share of the rows with a bit set in the gradient of one microbatch."""
    step_density: float = 1.0
    """The same for the gradient of a whole step."""
    trained: bool = True

    def __post_init__(self) -> None:
        if self.rows_k < 0:
            raise ValueError(f"{self.name} has {self.rows_k} rows; give 0 or more")
        for figure in (self.density, self.step_density):
            if not 0 <= figure <= 1:
                raise ValueError(f"{self.name} has the density {figure}; give 0 to 1")

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Of its gradient, in fp32."""
        return FLOAT_BYTES * self.size

    @property
    def rows(self) -> int:
        """Elements of its first dimension; 0: it has no rows that could be sent alone."""
        return self.shape[0] if len(self.shape) > 1 else 0

    @property
    def width(self) -> int:
        """Elements of a row."""
        return prod(self.shape[1:])

    def density_after(self, microbatches: int, step: int) -> float:
        """Share of the rows with a bit set in the sum of so many microbatches of a step, which has
        `step` of them. Between one and all it grows by a power of their number, as the distinct
        words of a text do with its length (Heaps, "Information Retrieval", 1978)."""
        few, all_of_them = self.density, max(self.density, self.step_density)
        if microbatches <= 1 or step <= 1 or not few:
            return few if microbatches < step else all_of_them
        grows = log(all_of_them / few) / log(step)
        return min(1.0, all_of_them, few * pow(microbatches, grows))


def gpt_synced(
    shapes: Mapping[str, tuple[int, ...]],
    layer: int,
    *,
    tokens: int,
    step_tokens: int,
    tied: bool,
    frozen: Mapping[str, tuple[int, ...]],
) -> tuple[ParameterFacts, ...]:
    """The parameters of one layer of the built-in GPT, with these shapes by local name. `tokens`:
    of a microbatch, `step_tokens`: of a step.

    A linear layer sees a row for each token. An embedding's gradient has at most as many rows with
    a bit set as there are tokens; that of a tied one also has the head's rows, which are all set.
    """
    facts = []
    for local, shape in shapes.items():
        one = ParameterFacts(
            name=f"{layer}.{local}", shape=shape, layer=layer, trained=local not in frozen
        )
        table = local in ("tokens.weight", "vocabulary.weight")
        if len(shape) < 2:
            one = replace(one, why_not="is a vector, not the weight of a linear layer")
        elif local == "positions":
            one = replace(one, why_not="is added to its layer's activations, not multiplied")
        elif table and tied:
            one = replace(one, why_not="is tied: the embedding and the head both use it")
        elif local == "tokens.weight":
            one = replace(
                one,
                why_not="is the table of an embedding, which is looked up, not multiplied",
                density=min(1.0, tokens / shape[0]),
                step_density=min(1.0, step_tokens / shape[0]),
            )
        else:
            one = replace(one, rows_k=tokens)
        facts.append(one)
    return tuple(facts)


def with_rows_of(
    facts: ParameterFacts, *, samples: int, before: int, microbatches: int
) -> ParameterFacts:
    """The same parameter where a microbatch has `samples` samples and had `before`, and a step has
    `microbatches` microbatches of `before`. Rows grow with the samples, and densities as in
    `density_after`."""
    if samples == before:
        return facts
    power = 1.0
    if microbatches > 1 and facts.density:
        power = log(max(facts.step_density, facts.density) / facts.density) / log(microbatches)
    density = facts.density * pow(samples / before, power)
    return replace(
        facts,
        rows_k=-(-facts.rows_k * samples // before),
        density=min(1.0, density, max(facts.step_density, facts.density)),
    )
