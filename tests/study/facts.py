"""What a preflight says, as fixed figures, for tests of plans and prices."""

from collections.abc import Callable
from typing import Any

from bamboo.config.tree import JobConfig
from bamboo.wiring.begun import Begun

DATA = {
    "files": 2,
    "bytes": 100_000,
    "all_files": 2,
    "all_bytes": 100_000,
    "max_bytes": 16_000_000,
    "left_out": {},
    "not_text": {"files": 0, "named": []},
    "syntax": {},
}
NUMERICS = {"torch": "2.13.0", "device": "cpu", "cpu_capability": "AVX2", "threads": 1}


def seen(
    job: JobConfig,
    *,
    told: Callable[[int, int], None] | None = None,
    note: object = None,
    model: bool = True,
    begun: Begun | None = None,
) -> dict[str, Any]:
    """An embedding, `job.model.layers` blocks and a head, 4 ms and 8 ms a layer; without `model`
    none of them."""
    assert begun is None or begun.take() is None, "on paper nothing begins"
    count = job.model.layers + 2
    if told is not None:
        told(count, count)
    return {
        "schema_version": 1,
        "layers": [
            {
                "index": index,
                "name": "Block" if 0 < index < count - 1 else "End",
                "parameters": 1000 * (index + 1),
                "parameter_bytes": 4000 * (index + 1),
                "moment_bytes": 8000 * (index + 1),
                "output_bytes": 4096,
                "activation_bytes": 65536,
                "forward_ms": 4.0,
                "backward_ms": 8.0,
                "optimizer_ms": 0.0,
            }
            for index in range(count if model else 0)
        ],
        "tied": [],
        "data_digest": "d" * 64,
        "samples": 1000,
        "unigram_entropy_nats": 3.25,
        "numerics": NUMERICS,
        "data": DATA,
    }


def trained(parameters: int) -> dict[str, int]:
    """What a preflight says of so many parameters of a layer, which AdamW trains."""
    return {"parameters": parameters, "moment_bytes": 8 * parameters}
