"""`python -m benchmarks.gpu_check.measure NAME JSON`: one measurement, printed as JSON."""

import json
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, TypeAlias, cast

Measurement: TypeAlias = Callable[[Mapping[str, Any]], Mapping[str, Any]]

WHERE = {
    "card": "device",
    "context": "device",
    "busy": "device",
    "holder": "sigkill",
    "sigkill": "sigkill",
    "ceiling": "copies",
    "calm": "calm",
    "loop": "loops",
    "memory": "memory",
    "race": "race",
    "room": "room",
}
"""The module of each measurement, which has a function of its name."""


def main(arguments: list[str]) -> int:
    name, asked = arguments
    module = import_module(f"benchmarks.gpu_check.measure.{WHERE[name]}")
    answer = cast(Measurement, getattr(module, name))(json.loads(asked))
    print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
