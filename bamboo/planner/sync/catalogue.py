"""The building blocks of a strategy, as a catalogue: what each does, its bytes, when it wins.

Rule: every kind of `bamboo.topology` is here once and nothing else is; `bamboo strategy list` and
docs/strategies.md print these rows.
"""

from dataclasses import dataclass

from bamboo.topology.strategy import BY_REDUNDANCY
from bamboo.topology.sync import DENSE, EXCHANGES, FACTORS, OWNER, ROWS, SHIPS, TREE, ZONED

LETTERS = (
    "Bytes are those that a node sends in a step. P: the bytes of a parameter, 4 a scalar. D: the "
    "number of pipelines. k: the partial sums that a pipeline holds of its share of the reduction "
    "tree, 1 where shares are equal. M x N: the weight of a linear layer, and K: the rows of its "
    "input in one pipeline's step."
)
BAMBOO = "Bamboo (Thorpe et al., NSDI 2023)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One building block of a strategy."""

    group: str
    """`exchange`, `ship` or `redundancy`: the key that it is a value of."""
    name: str
    does: str
    sends: str
    """A formula in the letters of LETTERS."""
    wins: str
    source: str


def _exchange(name: str, does: str, sends: str, wins: str, source: str) -> Block:
    return Block(group="exchange", name=name, does=does, sends=sends, wins=wins, source=source)


def _ship(name: str, does: str, sends: str, wins: str, source: str) -> Block:
    return Block(group="ship", name=name, does=does, sends=sends, wins=wins, source=source)


def _mode(name: str, does: str, sends: str, wins: str, source: str) -> Block:
    return Block(group="redundancy", name=name, does=does, sends=sends, wins=wins, source=source)


BLOCKS = (
    _exchange(
        TREE,
        "every pipeline sums a shard of the parameter, along one fixed binary tree, and sends the "
        "sum to all",
        "(k + 1) (D - 1) / D x P",
        "a gradient is dense, and all links are alike",
        "reduce-scatter and all-gather, in the order of a fixed tree; no ring, whose order of "
        "addition depends on the number of machines",
    ),
    _exchange(
        OWNER,
        "one pipeline gets all partial sums of a parameter, adds them along the tree and sends "
        "the sum to all",
        "k x P from each other pipeline; (D - 1) x P from the owner",
        "small parameters, which cost a message and hardly any bytes; a link or node that is "
        "slower than the others, which then owns nothing",
        "parameter server (Li et al., OSDI 2014)",
    ),
    _exchange(
        ZONED,
        "the pipelines of one zone add what they hold of one block of the tree, and only these "
        "sums cross to other zones",
        "within a zone as tree; between zones the sums of each zone alone",
        "pipelines in several zones with aligned shares: bytes between zones grow with zones and "
        "no longer with pipelines",
        "hierarchical all-reduce",
    ),
    _exchange(
        ROWS,
        "as tree, with shards of whole rows, of which only those with a bit set are sent, with "
        "their indices",
        "(k + 1) (D - 1) / D x the rows with a bit set, each 4 bytes longer; never more than dense",
        "an embedding of which a step touches few rows",
        "sparse parameters, as in Parallax (Kim et al., EuroSys 2019), but without loss",
    ),
    _exchange(
        FACTORS,
        "each pipeline sends the inputs and the output gradients of its microbatches; each forms "
        "and adds all products itself, in the same order",
        "4 K (D - 1) (M + N), or 2 K (D - 1) (M + N) in bf16; and 2 K M N flops for each other "
        "pipeline",
        "a wide linear layer that sees few rows a step; never one that sees tokens",
        "sufficient factors (Xie et al., 2014), as in Poseidon (Zhang et al., ATC 2017)",
    ),
    _ship(
        DENSE,
        "the owner sends the whole reduced gradient to its shadow",
        "P",
        "the gradient is dense",
        "the replica on the neighbour of " + BAMBOO + "; both take the optimizer's step",
    ),
    _ship(
        ROWS,
        "the rows of the reduced gradient with a bit set, with their indices",
        "the share of such rows x P, and 4 a row; never more than dense",
        "an embedding of which a step touches few rows, with one pipeline too",
        "as the exchange of rows",
    ),
    _ship(
        FACTORS,
        "the inputs and output gradients of all microbatches of the step, of which the shadow "
        "forms the gradient",
        "4 K (M + N) with the rows of all pipelines; 2 K M N flops on the shadow",
        "a wide linear layer that sees few rows; with several pipelines only beside the exchange "
        "of factors, because otherwise the owner lacks those of the others",
        "as the exchange of factors",
    ),
    _mode(
        "off",
        "nothing is kept on other nodes; a loss goes back to a checkpoint",
        "0",
        "on demand, or where checkpoints are cheap and losses are rare",
        "checkpoint and restart",
    ),
    _mode(
        "peer",
        "another pipeline is the copy; the step is done again",
        "0",
        "several pipelines, of one stage above all",
        "data parallelism",
    ),
    _mode(
        "stash",
        "a shadow takes every optimizer step and computes nothing ahead; what was sent is kept",
        "what the ship has",
        "losses at the usual rates: it costs next to nothing while nothing is lost",
        BAMBOO + ", without its redundant forwards",
    ),
    _mode(
        "gap",
        "as stash, with forwards that fit a wait that is known beforehand",
        "what the ship has",
        "waits are long and losses are frequent",
        BAMBOO + ": redundancy in the bubble",
    ),
    _mode(
        "eager",
        "as stash, with all forwards, whenever nothing else is ready",
        "what the ship has",
        "losses are frequent, and forwards cost little",
        BAMBOO + ": eager forwards, lazy backwards",
    ),
    _mode(
        "full",
        "as eager, with backwards too",
        "what the ship has",
        "a pause must be as short as it can be, whatever it costs",
        BAMBOO + ": eager forwards, eager backwards",
    ),
)
"""In the order of the kinds; what a redundancy mode ships is the business of `ship`."""

assert [one.name for one in BLOCKS] == [*EXCHANGES, *SHIPS, *BY_REDUNDANCY]
