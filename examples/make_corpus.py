"""Makes what jsonl.toml trains on: lines of JSON and a tokenizer, of Python's standard library.

python examples/make_corpus.py && bamboo prepare examples/jsonl.toml
"""

import json
import sys
import sysconfig
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY = 4096
END = "<|endoftext|>"


def main(folder: Path, most_files: int) -> None:
    """Write corpus.jsonl, with a document for each function or class, and tokenizer.json."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))[:most_files]
    whole = [path.read_text(encoding="utf-8", errors="replace") for path in modules]
    texts = [part for text in whole for part in text.split("\n\n\n") if part.strip()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    lines = (json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    print(f"{len(texts)} documents and {tokenizer.get_vocab_size()} tokens in {folder}")


if __name__ == "__main__":
    folder, most_files = (*sys.argv[1:], "", "")[:2]
    main(Path(folder or Path(__file__).parent / "corpus"), int(most_files or 1000))
