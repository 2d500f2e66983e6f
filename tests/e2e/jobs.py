"""Jobs so small that a run takes a second, and their variations."""

import os
from pathlib import Path
from typing import Any

from bamboo.config.tree import (
    ChaosConfig,
    CheckpointConfig,
    ClusterConfig,
    DataConfig,
    JobConfig,
    Kill,
    ModelConfig,
    TrainConfig,
)

STEPS = 8
ENDLESS = 5000
"""Steps of a run that is stopped once it has shown what it is to show."""
DEVICE = os.environ.get("BAMBOO_TEST_DEVICE", "cpu")
"""`lagging` has every test with these jobs run on a device that is done with its work later."""
_TEXT = Path(__file__).parents[2] / "LICENSE"
"""Some text that does not change; what it says does not matter."""


def job(
    *kills: Kill,
    steps: int = STEPS,
    virtual_nodes: int = 0,
    tied: bool = False,
    precision: str = "fp32",
    **cluster: Any,
) -> JobConfig:
    """GPT of 4 blocks of width 32 (6 layers), 8 microbatches a step; 4 stages and stash unless
    said."""
    settings: dict[str, Any] = {"stages": 4, "redundancy": "stash", "step_timeout_s": 30.0}
    settings |= {"device": DEVICE} | cluster
    return JobConfig(
        checkpoint=CheckpointConfig(every_steps=0),
        model=ModelConfig(layers=4, width=32, heads=2, context=16, dropout=0.1, tied=tied),
        data=DataConfig(source="path", path=str(_TEXT)),
        train=TrainConfig(
            steps=steps,
            batch=16,
            microbatch=2,
            seed=3,
            warmup_steps=2,
            virtual_nodes=virtual_nodes,
            precision=precision,
        ),
        cluster=ClusterConfig(**settings),
        chaos=ChaosConfig(kill=kills),
    )
