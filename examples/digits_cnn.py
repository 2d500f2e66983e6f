"""A small CNN with batch norm reads handwritten digits: the 1,797 images that scikit-learn ships.

`python examples/digits_cnn.py RUN` prints the share of held-out digits that a run's final state
reads right, in plain torch. Shapes: B images of 8 x 8. Each fifth image is held out.
"""

import hashlib
import sys

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import Tensor, nn

import bamboo
from bamboo.config.tree import JobConfig
from bamboo.models import Workload


class Digits:
    """((images_B188,), (labels_B,)) of those that are held out, or of the others."""

    def __init__(self, *, held_out: bool = False) -> None:
        found = load_digits()
        chosen = (torch.arange(len(found.target)) % 5 == 0) == held_out
        self.images = torch.tensor(found.images, dtype=torch.float32)[chosen, None] / 16
        self.labels = torch.tensor(found.target)[chosen]
        self.samples, self.unit = len(self.labels), "image"
        self.digest = hashlib.sha256(self.images.numpy().tobytes()).hexdigest()

    def batch(self, indices: list[int], keys: list[int]) -> tuple[tuple[Tensor], tuple[Tensor]]:
        return (self.images[indices],), (self.labels[indices],)


def data(job: JobConfig) -> Digits:
    """For a model that brings none, as in `hf_vit.toml`."""
    return Digits()


def held_out(job: JobConfig) -> Digits:
    """What such a model is evaluated on."""
    return Digits(held_out=True)


def layers() -> nn.Sequential:
    def block(channels: int, out: int, *rest: nn.Module) -> nn.Sequential:
        convolution = nn.Conv2d(channels, out, 3, padding=1, bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(out), nn.ReLU(), *rest)

    head = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4, 10))
    return nn.Sequential(
        block(1, 16), block(16, 32, nn.MaxPool2d(2)), block(32, 32, nn.MaxPool2d(2)), head
    )


def loss(scores_B10: Tensor, labels_B: Tensor) -> Tensor:
    return F.cross_entropy(scores_B10.float(), labels_B, reduction="sum")


def metrics(scores_B10: Tensor, labels_B: Tensor) -> dict[str, tuple[Tensor, int]]:
    return {"accuracy": ((scores_B10.argmax(1) == labels_B).sum(), len(labels_B))}


def build(job: JobConfig) -> Workload:
    return Workload(
        layers=layers(), loss=loss, data=data(job), metrics=metrics, eval_data=held_out(job)
    )


def accuracy(run: str) -> float:
    model, unseen = layers(), Digits(held_out=True)
    kept = {
        n.partition("/"): torch.tensor(x) for n, x in bamboo.open_run(run).final_state().items()
    }
    model.load_state_dict({n: x for (kind, _, n), x in kept.items() if kind in ("param", "buffer")})
    return (model.eval()(unseen.images).argmax(1) == unseen.labels).float().mean().item()


if __name__ == "__main__":
    print(f"{accuracy(sys.argv[1]):.3f}")
