"""Lets a language model go on with a text.

Rule: each token is drawn from a seeded generator on the CPU, by a forward over the tokens before
it, so the same seed gives the same text on the same machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bamboo.config.tree import TOKENS, JobConfig
from bamboo.data.tokenizer import Tokenizer
from bamboo.errors import InputError
from bamboo.models import evaluate
from bamboo.models.build import USER_ERRORS
from bamboo.ports import Told
from bamboo.runtime.after.trained import Trained
from bamboo.token_files import read_header
from bamboo.user_code.traces import placed_line_of

BYTES = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class _Words:
    """How the text of a run becomes tokens, and back."""

    ids: Callable[[str], list[int]]
    text: Callable[[Sequence[int]], str]
    known: int
    """Ids below this stand for something."""
    end: int | None = None
    """The id that ends a document."""


def sample(
    trained: Trained,
    place: torch.device,
    told: Told,
    *,
    prompt: str,
    length: int,
    temperature: float,
    seed: int,
    tokenizer: str,
) -> dict[str, Any]:
    """`prompt` and up to `length` tokens more, fewer where the model ends the document.
    `tokenizer`: its file, "" where bytes are tokens. Raises InputError for a model that is no
    language model, and a prompt that it has no tokens for."""
    _check(trained)
    words = _words(trained, tokenizer)
    ids = words.ids(prompt)
    if not ids:
        raise InputError("the prompt is empty; give at least one token to go on with")
    if max(ids) >= trained.job.model.vocabulary:
        raise InputError(
            f"the prompt has token {max(ids)}, and the model knows those below "
            f"{trained.job.model.vocabulary}; name the tokenizer that the run was trained with"
        )
    asked = len(ids)
    generator = torch.Generator().manual_seed(seed)
    ended = False
    for number in range(length):
        row = _logits(trained, ids[-trained.job.model.context :], place)[: words.known]
        token = _drawn(row, temperature, generator)
        if token == words.end:
            ended = True
            break
        ids.append(token)
        told(number + 1, length)
    return {"text": words.text(ids), "tokens": ids, "prompt_tokens": asked, "ended": ended}


def _check(trained: Trained) -> None:
    job = trained.job
    if trained.workload.data is not None:
        raise InputError(
            f"{job.model.model} is no language model: it is trained on data of its own, and not on "
            "the next token of a text; `bamboo eval` evaluates it"
        )


def _words(trained: Trained, tokenizer: str) -> _Words:
    job = trained.job
    if not job.data.is_prepared:
        known = min(BYTES, job.model.vocabulary)
        return _Words(ids=lambda text: _bytes_of(text, known), text=_text_of_bytes, known=known)
    if not tokenizer:
        where = "a token file" if job.data.source == TOKENS else "ids"
        raise InputError(
            f"the run was trained on {where} without a tokenizer; name its tokenizer.json"
        )
    made = Tokenizer(job, replace(job.data, tokenizer=tokenizer), section="data")
    _check_same(made, job)

    def ids(text: str) -> list[int]:
        if lost := made.lacking(text):
            raise InputError(
                f"the prompt has {lost!r}, which the tokenizer of the run has no token for; leave "
                "it out"
            )
        return made.ids([text])[0]

    known = min(made.vocabulary, job.model.vocabulary)
    return _Words(ids=ids, text=made.text, known=known, end=made.end)


def _check_same(made: Tokenizer, job: JobConfig) -> None:
    """Raise InputError where the token file of the run is here and of another tokenizer."""
    path = Path(job.tokens)
    wanted = read_header(path).tokenizer if job.tokens and path.exists() else ""
    if wanted not in ("", made.digest):
        raise InputError(
            f"the tokenizer has the SHA-256 {made.digest[:12]}, and the tokens of the run were "
            f"made with {wanted[:12]}; name that one"
        )


def _bytes_of(text: str, known: int) -> list[int]:
    for character in text:
        if any(byte >= known for byte in character.encode()):
            raise InputError(
                f"the prompt has {character!r}, and the model knows bytes below {known}; leave it "
                "out"
            )
    return [*text.encode()]


def _text_of_bytes(ids: Sequence[int]) -> str:
    return bytes(ids).decode(errors="replace")


def _logits(trained: Trained, ids: Sequence[int], place: torch.device) -> Tensor:
    """What the model gives behind the last of these tokens: float32, of each id."""
    job = trained.job
    train = job.train
    tokens = torch.tensor([ids], device=place)
    try:
        output = evaluate(
            trained.layers, (tokens,), seed=train.seed, microbatch=0, precision=train.precision
        )
    except USER_ERRORS as error:
        raise InputError(
            f"{job.model.model} does not run on {len(ids)} tokens, and a sample needs any number "
            f"up to model.context = {job.model.context}: {placed_line_of(error)}"
        ) from error
    logits = output[0]
    if len(output) != 1 or logits.dim() != 3 or logits.shape[:2] != tokens.shape:
        shapes = ", ".join(str(list(t.shape)) for t in output)
        raise InputError(
            f"{job.model.model} is no language model: of tokens {list(tokens.shape)} it makes "
            f"{shapes}, and not a value for each token of the vocabulary"
        )
    row = logits[0, -1].float().cpu()
    if not bool(row.isfinite().all()):
        raise InputError(f"{job.model.model} gives numbers that are not finite; take another step")
    return row


def _drawn(row: Tensor, temperature: float, generator: torch.Generator) -> int:
    if not temperature:
        return int(row.argmax())
    # In double precision and below zero, no temperature makes anything but numbers of it.
    odds = ((row.double() - row.max()) / temperature).softmax(0)
    return int(torch.multinomial(odds, 1, generator=generator))
