"""The tokenizer of a job, by the library tokenizers: text into ids, and back.

Rule: it knows nothing of padding, of a longest text, or of tokens around it.
"""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from bamboo.config.prepared import refuse, tokenizer_digest
from bamboo.config.tree import DataConfig, JobConfig
from bamboo.extras import need
from bamboo.topology.strategy import AUTO

ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")
"""What tokenizers call the token that ends a document."""
NO_END = "none"
BROKEN = "\N{REPLACEMENT CHARACTER}"


class Tokenizer:
    """The one that a description of data names, in this section of the job file. Raises InputError
    for a file that is none."""

    def __init__(self, job: JobConfig, data: DataConfig, *, section: str) -> None:
        need("data", what=f"{section}.tokenizer", only="tokenizers")
        from tokenizers import Tokenizer

        path = job.named(data.tokenizer)
        self.digest = tokenizer_digest(job, data, section=section)
        try:
            self._made = Tokenizer.from_file(str(path))
        except Exception as error:  # it has no class of its own for what is wrong
            key, problem = f"{section}.tokenizer", f"is no tokenizer ({error})"
            raise refuse(job, key, data.tokenizer, problem, "name a tokenizer.json") from error
        self._made.no_padding()
        self._made.no_truncation()
        ids = self._made.get_vocab(with_added_tokens=True)
        self.vocabulary = max(ids.values()) + 1
        self.end: int | None = None
        """The id that is put behind each document."""
        if data.end == AUTO:
            self.end = next((ids[name] for name in ENDS if name in ids), None)
        elif data.end != NO_END:
            self.end = ids.get(data.end)
            if self.end is None:
                key, problem = f"{section}.end", f"is no token of {path.name}"
                raise refuse(job, key, data.end, problem, f"name one, or {NO_END!r}")

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text."""
        found = self._made.encode_batch_fast(list(texts), add_special_tokens=False)
        return [one.ids for one in found]

    def text(self, ids: Sequence[int]) -> str:
        """What these ids say."""
        said: str = self._made.decode(list(ids), skip_special_tokens=False)
        return said

    def lacking(self, text: str) -> str:
        """The first part of a text that it has no token for; "" where it has all. Spaces may have
        none."""
        found = self._made.encode(text, add_special_tokens=False)
        unknown = self._unknown()
        known = [span for one, span in zip(found.ids, found.offsets, strict=True) if one != unknown]
        edges = [0, *(edge for span in sorted(known) for edge in span), len(text)]
        between = [text[a:b].strip() for a, b in pairwise(edges) if (a, b) not in known]
        lost = next(filter(None, between), "")
        if not lost and self.text(found.ids).count(BROKEN) > text.count(BROKEN):
            lost = next((one for one in text if BROKEN in self.text(self.ids([one])[0])), text)
        return lost

    def _unknown(self) -> int | None:
        """The id of what it has no token for."""
        model: dict[str, Any] = json.loads(self._made.to_str())["model"]
        if (number := model.get("unk_id")) is not None:
            return int(number)
        name = model.get("unk_token")
        return None if name is None else self._made.token_to_id(name)
