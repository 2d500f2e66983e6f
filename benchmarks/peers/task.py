"""What a process of another system trains: the same layers, data, optimizer and step time as ours.

Rule: it runs in the peers' environment, imports only our model code, and knows nothing of
processes. Its gradients are sums over microbatches, divided by the tokens of a step.
"""

import hashlib
import time
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from bamboo.config.load import job_from_json
from bamboo.data.dataset import load_data
from bamboo.models import build_layer, build_model, named_parameters, run_layers, unpacked
from bamboo.runtime.optim.optimizer import Optimizer
from bamboo.runtime.step.norm import clip_factor, squares


class Task:
    """All layers of a job's model in one process."""

    def __init__(self, job_text: str) -> None:
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(True)
        self._job = job_from_json(job_text)
        self._data = load_data(self._job)
        self._workload = build_model(self._job)
        seed = self._job.train.seed
        self._layers = [
            (i, build_layer(self._workload, i, seed)) for i in range(len(self._workload.layers))
        ]
        named = dict(named_parameters(self._layers))
        self._params = [*named.values()]
        self._optimizer = Optimizer(self._job.train)
        self._kept = self._optimizer.new_state(named)
        self._count = self._data.count(0)

    def gradient(self, step: int, microbatches: Iterable[int]) -> Tensor:
        """The flat gradient of these microbatches of a step."""
        for parameter in self._params:
            parameter.grad = None
        seed = self._job.train.seed
        for index in microbatches:
            inputs, targets = self._data.microbatch(step, index)
            output = run_layers(self._layers, inputs, seed=seed, step=step, microbatch=index)
            (self._workload.loss(unpacked(output), unpacked(targets)) / self._count).backward()
        return torch.cat(
            [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in self._params]
        )

    def take(self, step: int, flat: Tensor) -> None:
        """One step of the optimizer with the whole gradient, clipped."""
        sizes = [p.numel() for p in self._params]
        grads = [part.view_as(p) for part, p in zip(flat.split(sizes), self._params, strict=True)]
        factor = clip_factor(squares(grads), self._job.train.clip_norm)
        self._optimizer.step(self._params, grads, self._kept, step=step, clip_factor=factor)

    def state(self) -> list[Tensor]:
        """Parameters and moments themselves, in order."""
        return [
            *(p.detach() for p in self._params),
            *(tensor for own in self._kept.tensors.values() for tensor in own.values()),
        ]

    def load(self, tensors: Iterable[Tensor]) -> None:
        """Take over what `state` returned elsewhere."""
        for mine, theirs in zip(self.state(), tensors, strict=True):
            mine.copy_(theirs)

    def write(self, path: Path, step: int) -> None:
        """A checkpoint before `step`: its number, then the bytes of parameters and moments."""
        with path.open("wb") as file:
            file.write(step.to_bytes(8, "little"))
            for tensor in self.state():
                file.write(tensor.contiguous().numpy().tobytes())

    def read(self, path: Path) -> int:
        """Take over what `write` wrote. Returns the step that comes next."""
        content = bytearray(path.read_bytes())
        at = 8
        for mine in self.state():
            theirs = torch.frombuffer(content, dtype=mine.dtype, offset=at, count=mine.numel())
            mine.copy_(theirs.view_as(mine))
            at += mine.numel() * mine.element_size()
        return int.from_bytes(content[:8], "little")

    def digest(self) -> str:
        """SHA-256 of all parameters."""
        digest = hashlib.sha256()
        for parameter in self._params:
            digest.update(parameter.detach().contiguous().numpy().data)
        return digest.hexdigest()


def pace(begun_s: float, step_s: float) -> None:
    """Sleep until the operations of a step that began at `begun_s` would be done."""
    time.sleep(max(0.0, begun_s + step_s - time.monotonic()))
