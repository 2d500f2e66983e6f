"""What the fork servers call in a forked process: a preflight, the calm reference, or a worker.

Each process is made what a fresh one would be: numpy's chance is seeded anew, and environment,
arguments and working folder are its own (keys `environment`, `called`, `folder` of the config).
"""

import io
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np

import bamboo.runtime.check.preflight
import bamboo.runtime.node.worker
from bamboo.checkpoint.final import tensor_sha256
from bamboo.config.load import job_from_json
from bamboo.data.dataset import load_data
from bamboo.models import build_model
from bamboo.runtime.check.reference import CalmRun
from bamboo.runtime.step.numerics import prepare
from bamboo.runtime.step.stage import Stage
from bamboo.user_code import local
from testbed.waiting import wait_until

GATE_DEADLINE_S = 30.0


def preflight(config: Mapping[str, str]) -> int:
    """Answer as a launch is answered, into the file `answer`."""
    _become(config)
    output = os.open(config["answer"], os.O_WRONLY | os.O_CREAT, 0o600)
    os.dup2(output, 1)
    sys.stdin = io.StringIO(config["job"])
    return bamboo.runtime.check.preflight.main([])


def facts(config: Mapping[str, str]) -> int:
    """Answer what a run needs to know of a model, without a look at what its layers do."""
    _become(config)
    job = job_from_json(config["job"])
    prepare(job.cluster)
    answer = {
        "layers": [{}] * len(build_model(job).layers),
        "data_digest": load_data(job).digest,
        "code": None,
    }
    Path(config["answer"]).write_text(json.dumps(answer), encoding="utf-8")
    return 0


def calm(config: Mapping[str, str]) -> int:
    """Train the job as `verify` does; losses and digests of tensors go into the file `answer`."""
    _become(config)
    job = job_from_json(config["job"])
    prepare(job.cluster)
    run = CalmRun(job, build_model(job), load_data(job))
    losses = [run.step().hex() for _ in range(job.train.steps)]
    tensors = {name: tensor_sha256(tensor) for name, tensor in run.tensors().items()}
    answer = {"losses": losses, "tensors": tensors}
    Path(config["answer"]).write_text(json.dumps(answer), encoding="utf-8")
    return 0


def worker(config: Mapping[str, str]) -> int:
    """Be a worker. `gate` is `step,file`: the first stage's input of that step is not there before
    the file is."""
    _become(config)
    if config.get("gate"):
        _wait_at(config["gate"])
    return bamboo.runtime.node.worker.main(config)


def _become(config: Mapping[str, str]) -> None:
    # The files of this harness are no code of the user's.
    root = Path(__file__).parents[2]
    harness = (f"{root / name}{os.sep}" for name in ("tests", "testbed"))
    local.OWN_FOLDERS = (*local.OWN_FOLDERS, *harness)
    np.random.seed(int.from_bytes(os.urandom(4)))
    os.environ.update(json.loads(config.get("environment", "{}")))
    sys.argv = [config.get("called", "bamboo")]
    os.chdir(config["folder"])


def _wait_at(gate: str) -> None:
    step, _, name = gate.partition(",")
    honest, file = Stage.input_of, Path(name)

    def input_of(self: Stage, of_step: int, microbatch: int) -> object:
        if of_step == int(step):
            wait_until(file.exists, what=f"the file {file}", timeout_s=GATE_DEADLINE_S)
        return honest(self, of_step, microbatch)

    Stage.input_of = input_of  # type: ignore[method-assign, assignment]
