"""Only named places read a tensor's numbers on the host, or speak of CUDA: each may wait for a GPU,
and whoever waits for a GPU by chance makes it idle."""

import re

from tests.tidy.tree import python_sources

READS = re.compile(r"\.item\(\)|\.cpu\(\)|\.numpy\(\)|\.tolist\(\)|torch\.cuda")
FLOORS = ("wire", "step", "state", "node")
ROOMS_OF_A_NODE = tuple(
    f"bamboo/{room}/" for room in ("models", *(f"runtime/{floor}" for floor in FLOORS))
)
ALLOWED = {
    "bamboo/runtime/wire/frames.py": 2,  # what is sent lies on the host already
    "bamboo/runtime/wire/chunks.py": 1,  # the one chunk that lies on both
    "bamboo/runtime/wire/assembly.py": 1,  # memory of the host
    "bamboo/runtime/step/numerics.py": 1,  # the facts of a GPU
    "bamboo/runtime/step/norm.py": 1,  # all squares of a step at once
    "bamboo/runtime/step/rows.py": 1,  # all densities at once, in one step of twenty
    "bamboo/runtime/step/evaluation.py": 1,  # all losses of a step or an evaluation at once
    "bamboo/runtime/node/records.py": 1,  # the hash of a replica, where a job asks for it
    "bamboo/models/datasets.py": 1,  # what is hashed of tensors on the host
    "bamboo/models/running.py": 1,  # the generator of a GPU
    "bamboo/models/traced/layer.py": 1,  # initial values, on the host
    "bamboo/models/hf/weights.py": 1,  # what was just read from a file
    "bamboo/models/hf/objectives.py": 1,  # drawn on the host, like all data
}


def test_numbers_are_read_on_the_host_in_named_places() -> None:
    found: dict[str, int] = {}
    for source in python_sources():
        if source.path.startswith(ROOMS_OF_A_NODE):
            count = sum(len(READS.findall(line)) for line in source.lines)
            if count:
                found[source.path] = count
    assert found == ALLOWED
