"""Nodes as people name them: by the beginning of an id, which every command accepts too."""

import re
from collections.abc import Sequence

from bamboo.ids import NodeId

SHORTEST = 6
"""The least characters of an id: `i-51cf`."""


def short_names(nodes: Sequence[NodeId]) -> dict[NodeId, str]:
    """Each node by the beginning of its id, as short as distinguishes all of them."""
    apart = len(set(nodes))
    longest = max(map(len, nodes), default=SHORTEST)
    lengths = range(SHORTEST, max(longest, SHORTEST) + 1)
    length = next(n for n in lengths if len({node[:n] for node in nodes}) == apart)
    return {node: node[:length] for node in nodes}


def with_short_names(text: str, nodes: Sequence[NodeId]) -> str:
    """The same text with each node's id shortened, and without the word `node` before it; the
    option `--node` stays."""
    for node, name in sorted(short_names(nodes).items(), key=lambda item: -len(item[0])):
        text = re.sub(rf"(?<!-)node {re.escape(node)}", name, text).replace(node, name)
    return text
