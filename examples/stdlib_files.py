"""Which file of Python's standard library is a window of 64 tokens from? An embedding, transformer
blocks and wide layers, on names, numbers and operators.

    python examples/stdlib_files.py && bamboo launch examples/stdlib_files.toml

The first command writes the tokens into a folder, once, and says how many windows a unigram model
(naive Bayes) attributes rightly that it has not seen. A run shows that of the network on the part
`held_out`, by which its rates were chosen; on the last part, which nothing was chosen by:

    bamboo eval last --source examples/stdlib_files.py:unseen

Shapes: B windows of T tokens, W width, F files.
"""

import hashlib
import io
import json
import os
import sys
import sysconfig
import tokenize
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bamboo.config.tree import JobConfig
from bamboo.models import Workload

WINDOW = 64
"""Tokens."""
PARTS = {"trained": (1, 2, 3, 4, 5, 6, 8, 9), "held out": (0,), "unseen": (7,)}
"""Which windows of ten are trained on, which rates are chosen by, and which are for the end."""
WIDER = 16
"""The wide layers, in widths of the model."""
KINDS = (tokenize.NAME, tokenize.NUMBER, tokenize.OP)
NOT_OURS = {"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"}


# ---------------------------------------------------------------- tokens, written once


def write(folder: Path, most_files: int) -> None:
    """Write tokens.ids, and files.json with what they are: the files, where each ends, and how
    many different tokens there are. The most frequent token has the number 0."""
    root = Path(sysconfig.get_path("stdlib"))
    files = []
    for below, folders, names in os.walk(root):
        folders[:] = set(folders) - NOT_OURS
        paths = (Path(below, name).relative_to(root) for name in names if name.endswith(".py"))
        files += [path.as_posix() for path in paths]
    files.sort()
    del files[most_files:]
    words = [_words((root / file).read_bytes()) for file in files]
    counts = Counter(word for of_file in words for word in of_file)
    order = sorted(counts, key=lambda word: (-counts[word], word))
    number = {word: n for n, word in enumerate(order)}
    tokens = numpy.array([number[word] for of_file in words for word in of_file], dtype="<i4")
    ends = numpy.cumsum([len(of_file) for of_file in words]).tolist()
    folder.mkdir(exist_ok=True)
    tokens.tofile(folder / "tokens.ids")
    said = {"files": files, "ends": ends, "vocabulary": len(order)}
    (folder / "files.json").write_text(json.dumps(said), encoding="utf-8")
    print(f"{len(tokens):,} tokens, {len(order):,} different ones, of {len(files)} files: {folder}")


def _words(source: bytes) -> list[str]:
    read = tokenize.tokenize(io.BytesIO(source).readline)
    return [token.string for token in read if token.type in KINDS]


# ---------------------------------------------------------------- data


class Windows:
    """((tokens_BT,), (files_B,)) of the windows of one of PARTS. A window lies within one file, and
    what is left at the end of a file is in none."""

    def __init__(self, folder: Path, part: str) -> None:
        said = json.loads((folder / "files.json").read_text(encoding="utf-8"))
        tokens = torch.from_numpy(numpy.fromfile(folder / "tokens.ids", dtype="<i4"))
        parts, labels = [], []
        for file, (begin, end) in enumerate(pairwise([0, *said["ends"]])):
            count = (end - begin) // WINDOW
            parts.append(tokens[begin : begin + count * WINDOW])
            labels += [file] * count
        windows = torch.cat(parts).view(-1, WINDOW)
        chosen = torch.isin(torch.arange(len(windows)) % 10, torch.tensor(PARTS[part]))
        self.windows, self.labels = windows[chosen], torch.tensor(labels)[chosen]
        self.samples, self.unit = len(self.labels), "window"
        whole = self.windows.numpy().tobytes() + self.labels.numpy().tobytes()
        self.digest = hashlib.sha256(whole).hexdigest()

    def batch(self, indices: list[int], keys: list[int]) -> tuple[tuple[Tensor], tuple[Tensor]]:
        return (self.windows[indices].long(),), (self.labels[indices],)


def data(job: JobConfig) -> Windows:
    return Windows(job.named(job.data.path), "trained")


def held_out(job: JobConfig) -> Windows:
    return Windows(job.named(job.data.path), "held out")


def unseen(job: JobConfig) -> Windows:
    return Windows(job.named(job.data.path), "unseen")


def unigram_accuracy(folder: Path, part: str) -> float:
    """Of naive Bayes on the windows of a part: the file whose tokens, each by itself, make the
    window likeliest. Counts begin at `alpha`, the best of five on the part `held out`; a file is as
    likely as it has windows to train on."""
    alpha = 0.0001
    seen, asked = Windows(folder, "trained"), Windows(folder, part)
    said = json.loads((folder / "files.json").read_text(encoding="utf-8"))
    files, vocabulary = len(said["files"]), int(said["vocabulary"])
    counts_FV = torch.zeros(files, vocabulary)
    where = seen.labels[:, None] * vocabulary + seen.windows.long()
    counts_FV.view(-1).index_add_(0, where.flatten(), torch.ones(where.numel()))
    totals_F = counts_FV.sum(1)
    prior_F = (seen.labels.bincount(minlength=files) + alpha).log()
    log_FV = (counts_FV.add_(alpha)).log_() - (totals_F + alpha * vocabulary).log()[:, None]
    log_VF = log_FV.T.contiguous()
    guesses = [(log_VF[tokens_T].sum(0) + prior_F).argmax() for tokens_T in asked.windows.long()]
    return (torch.stack(guesses) == asked.labels).float().mean().item()


# ---------------------------------------------------------------- model


class Block(nn.Module):
    """A transformer block without a mask: each token sees the whole window."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attended = nn.Linear(width, 3 * width)
        self.mixed = nn.Linear(width, width)
        self.wide = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x_BTW: Tensor) -> Tensor:
        parts = self.attended(self.norms[0](x_BTW)).chunk(3, dim=-1)
        query, key, value = (x.unflatten(-1, (self.heads, -1)).transpose(1, 2) for x in parts)
        seen = F.scaled_dot_product_attention(query, key, value)
        x_BTW = x_BTW + self.mixed(seen.transpose(1, 2).flatten(2))
        fed: Tensor = self.narrow(F.gelu(self.wide(self.norms[1](x_BTW))))
        return x_BTW + fed


class Mean(nn.Module):
    """Of a window."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)

    def forward(self, x_BTW: Tensor) -> Tensor:
        x_BTW = self.norm(x_BTW)
        return x_BTW.mean(1)


def loss(scores_BF: Tensor, files_B: Tensor) -> Tensor:
    return F.cross_entropy(scores_BF.float(), files_B, reduction="sum")


def metrics(scores_BF: Tensor, files_B: Tensor) -> dict[str, tuple[Tensor, int]]:
    return {"accuracy": ((scores_BF.argmax(1) == files_B).sum(), len(files_B))}


def table(vocabulary: int, width: int) -> nn.Embedding:
    made = nn.Embedding(vocabulary, width)
    nn.init.normal_(made.weight, std=0.02)
    return made


def wide(given: int, out: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(given, out), nn.ReLU())


def build(job: JobConfig) -> Workload:
    file = job.named(job.data.path) / "files.json"
    said = json.loads(file.read_text(encoding="utf-8"))
    width, wider = job.model.width, WIDER * job.model.width
    layers: list[Callable[[], nn.Module]] = [
        partial(table, said["vocabulary"], width),
        *(partial(Block, width, job.model.heads) for _ in range(job.model.layers)),
        partial(Mean, width),
        partial(wide, width, wider),
        partial(wide, wider, wider),
        partial(nn.Linear, wider, len(said["files"])),
    ]
    return Workload(layers=layers, loss=loss, metrics=metrics)


if __name__ == "__main__":
    folder, most_files = (*sys.argv[1:], "", "")[:2]
    tokens = Path(folder or Path(__file__).parent / "stdlib-files")
    write(tokens, int(most_files or 10_000))
    said = ", ".join(f"{unigram_accuracy(tokens, p):.4f} {p}" for p in ("held out", "unseen"))
    print(f"accuracy of a unigram model: {said}")
