"""The weights of a Hugging Face model: hashed in its folder, and kept in the folder of a run.

    init/*.safetensors   the model's own files, as links where both folders lie on one disk
    init/manifest.json   {schema_version, tensors: {name in the files: sha256}}

Rule: a node reads the tensors of its layers alone, and compares each with the manifest. So a link
is as good as a copy: a file that is changed where it was is refused, and never trained with.
"""

import errno
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from bamboo.checkpoint.initial import SCHEMA_VERSION, Weights
from bamboo.checkpoint.tensor_file import hashed
from bamboo.errors import InputError
from bamboo.kept_weights import DAMAGE, INDEX, MANIFEST, damaged, kept_tensors, weight_files
from bamboo.named_files import open_named
from bamboo.new_files import write_whole

_NO_LINKS = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP)


def pretrained_in(files: Sequence[Path]) -> Weights:
    """The weights in the files of a Hugging Face model. Raises InputError when a file cannot be
    read, is damaged or cut short, or two files have one tensor."""
    tensors: dict[str, str] = {}
    for path in files:
        try:
            with open_named(path) as file:
                found = hashed(file).tensors
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; make it readable") from error
        except DAMAGE as error:
            raise InputError(f"{path}: is damaged ({error}); get the folder again") from error
        if both := sorted(tensors.keys() & found.keys()):
            raise InputError(f"{path}: {both[0]} is in another file, too; get the folder again")
        tensors |= found
    return Weights(run="", step=0, tensors=tensors, shapes={})


def keep_pretrained(source: Path, weights: Weights, folder: Path) -> None:
    """Link or copy the files of a model into a run's folder, the manifest last. Raises InputError
    when they have changed since they were read, and OSError."""
    folder.mkdir()
    index = [source / INDEX] if (source / INDEX).exists() else []
    for path in (*weight_files(source), *index):
        try:
            os.link(os.path.realpath(path), folder / path.name)
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            shutil.copyfile(path, folder / path.name)
    if pretrained_in(weight_files(folder)) != weights:
        raise InputError(
            f"the weights in {source} have changed since they were looked at; launch again"
        )
    body = {"schema_version": SCHEMA_VERSION, "tensors": dict(weights.tensors)}
    write_whole(folder / MANIFEST, (json.dumps(body, indent=1) + "\n").encode())


def check_pretrained(folder: Path, *, digest: str) -> None:
    """Read all weights that a run keeps. Raises InputError when they are not those of this
    digest."""
    kept = kept_tensors(folder, digest)
    try:
        found = pretrained_in(weight_files(folder)).tensors
    except InputError as error:
        raise damaged(folder, str(error)) from error
    wrong = [name for name in kept.keys() | found.keys() if kept.get(name) != found.get(name)]
    if wrong:
        raise damaged(folder, f"{min(wrong)} is not what was written")
