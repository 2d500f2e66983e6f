"""Writes what was trained as other programs read it.

    model.safetensors            for `load_state_dict` of the user's own module
    config.json, ...             a Hugging Face model: what `from_pretrained` loads
    .metadata, *.distcp          by torch.distributed.checkpoint

Rule: the folder is new and the caller's, who gives it its name once all is written.
"""

import importlib
import json
import shutil
import warnings
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from bamboo.errors import InputError
from bamboo.kept_weights import ONE_FILE
from bamboo.new_files import write_whole
from bamboo.runtime.after.trained import Trained

DCP = "dcp"
TOKENIZER = "tokenizer.json"
_LOADED_AS = {"tokenizer_class": "PreTrainedTokenizerFast"}


def export(trained: Trained, folder: Path, *, form: str, tokenizer: str) -> dict[str, Any]:
    """Write it into this folder; `form` is `safetensors` or `dcp`, `tokenizer` the file of the
    run's tokenizer or "". Says what was written. Raises InputError where the disk refuses."""
    try:
        if form == DCP:
            _save_distributed(trained, folder)
        elif trained.job.model.is_hf:
            # transformers takes seconds to import.
            saving = importlib.import_module("bamboo.models.hf.saving")
            saving.save(trained.job, [layer for _, layer in trained.layers], folder)
            if tokenizer:
                shutil.copyfile(tokenizer, folder / TOKENIZER)
                write_whole(folder / "tokenizer_config.json", json.dumps(_LOADED_AS).encode())
        else:
            save_file(trained.whole_state(), folder / ONE_FILE, metadata={"format": "pt"})
    except (OSError, SafetensorError) as error:
        raise _unwritable(folder, error) from error
    written = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        "files": [path.relative_to(folder).as_posix() for path in written],
        "bytes": sum(path.stat().st_size for path in written),
        "parameters": sum(
            parameter.numel() for _, layer in trained.layers for parameter in layer.parameters()
        ),
    }


def _save_distributed(trained: Trained, folder: Path) -> None:
    # It takes a second to import, which others need not.
    from torch.distributed.checkpoint.api import CheckpointException
    from torch.distributed.checkpoint.state_dict_saver import save

    try:
        with warnings.catch_warnings(action="ignore"):  # that there is one process is meant
            save(trained.whole_state(), checkpoint_id=folder, no_dist=True)
    except CheckpointException as error:
        causes = [one for one, _ in error.failures.values()]
        raise _unwritable(folder, causes[0] if causes else error) from error


def _unwritable(folder: Path, error: BaseException) -> InputError:
    why = getattr(error, "strerror", None) or " ".join(str(error).split())
    return InputError(
        f"{folder.parent} cannot be written: {why}; make room there, or name a folder on another "
        "disk"
    )
