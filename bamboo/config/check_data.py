"""Which sources of data a job may name, and which keys each of them has."""

from pathlib import Path

from bamboo.config.far_data import S3
from bamboo.config.tree import PREPARED, DataConfig, JobConfig
from bamboo.errors import InputError
from bamboo.topology.strategy import AUTO

BYTES = ("python-stdlib", "path")
"""Sources whose bytes are the tokens."""
SOURCES = (*BYTES, *PREPARED)
DOCUMENTS = ("packed", "padded")
NAME_TEXT = 'name your text, or take data.source = "python-stdlib"'
MAKE_OWN = "correct the path, or make first what your data function reads"
_KEYS: dict[str, tuple[str, ...]] = {
    "python-stdlib": ("max_bytes",),
    "path": ("path", "max_bytes"),
    "tokens": ("path", "tokenizer", "documents", "in_image"),
    "text": ("path", "tokenizer", "documents", "end"),
    "jsonl": ("path", "tokenizer", "documents", "end", "field"),
    "arrow": ("path", "tokenizer", "documents", "end", "field"),
}
"""Source -> the keys that it has."""
_OF_OWN = ("path", "in_image")
"""The keys of data of the user's own: what its function reads."""
_NEEDED = {
    "path": ("path", "names no file or folder", NAME_TEXT),
    "tokens": ("path", "names no token file", "name one"),
    "text": ("path", "names no file or folder", "name your text"),
    "jsonl": ("path", "names no file or folder", "name your lines of JSON"),
    "arrow": ("path", "names no folder", "name one that datasets.save_to_disk made"),
}


def check_data(job: JobConfig, data: DataConfig, *, section: str = "data") -> None:
    """Raises InputError with the first key of a description of data that is not possible;
    `section` is the one of the job file that has it."""

    def at(key: str, problem: str, remedy: str) -> InputError:
        return InputError.at(
            file=job.file,
            key=f"{section}.{key}",
            value=getattr(data, key),
            problem=problem,
            remedy=remedy,
        )

    own = section == "data" and "data.source" in job.own
    if not own and data.source not in SOURCES:
        remedy = f'take one of {", ".join(SOURCES)}, or "file.py:data"'
        raise at("source", "is not possible", remedy)
    if data.documents not in DOCUMENTS:
        raise at("documents", "is not possible", f"take one of {', '.join(DOCUMENTS)}")
    plain = DataConfig()
    for key in ("path", "max_bytes", "tokenizer", "field", "documents", "end", "in_image"):
        keys_of_source = _OF_OWN if own else _KEYS.get(data.source, ())
        if key not in keys_of_source and getattr(data, key) != getattr(plain, key):
            of = [source for source, keys in _KEYS.items() if key in keys]
            of += ['"file.py:data"'] * (key in _OF_OWN and section == "data")
            remedy = f"set {section}.source to {' or '.join(of)}, or leave it out"
            raise at(key, f"is not read from {data.source}", remedy)
    if own and data.path and job.cloud.provider != "local" and not data.in_image:
        remedy = "put it into their image and set data.in_image = true, or open it in the model"
        raise at("path", "is on this machine and not on the instances", remedy)
    if data.source in _NEEDED and not getattr(data, _NEEDED[data.source][0]):
        raise at(*_NEEDED[data.source])
    if data.path.startswith(S3) and data.source != "tokens":
        remedy = 'name files of this machine, or take "tokens" and a token file that lies there'
        raise at("path", "is in a bucket, where only token files are read", remedy)
    if data.path.startswith(S3) and job.cloud.provider == "local":
        # The instances of a local cloud are processes without any credentials of the user's.
        problem = "is in a bucket, which the instances of a local cloud have no right to read"
        remedy = 'copy it to this machine, or take cloud.provider = "ec2"'
        raise at("path", problem, remedy)
    if data.path.startswith(S3) and (data.in_image or data.path.endswith("/")):
        raise at("path", "names no object that instances read", "name the token file itself")
    if data.in_image and (job.cloud.provider == "local" or not Path(data.path).is_absolute()):
        problem = "is of an account" if job.cloud.provider == "local" else "needs a whole path"
        raise at("in_image", problem, f"leave it out, or give {section}.path from the root on")
    if data.source in ("text", "jsonl") and not data.tokenizer:
        raise at("tokenizer", "names no tokenizer", "name a tokenizer.json")
    if not data.field or (not data.end and data.end != AUTO):
        key = "end" if data.field else "field"
        raise at(key, "is empty", f"leave it out, or write {'a token' if data.field else 'a name'}")
