"""Reads the tensors of a folder that torch.distributed.checkpoint wrote, and runs nothing of it.

    .metadata     a pickle: name, type and shape of each tensor, and which bytes of which file it is
    *.distcp      those bytes, as `torch.save` writes a tensor

Rule: of the pickle only torch's own plain classes of such metadata are made, and of a tensor only a
tensor; whatever else is in there is refused by its name.
"""

import pathlib
import pickle
import warnings
from collections import OrderedDict
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import filesystem
from torch.distributed.checkpoint import metadata as plain
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load

from bamboo.errors import InputError
from bamboo.named_files import open_named

METADATA = ".metadata"
_CLASSES: Mapping[tuple[str, str], Any] = {
    (one.__module__, one.__qualname__): one
    for one in (
        plain.BytesStorageMetadata,
        plain.ChunkStorageMetadata,
        plain.Metadata,
        plain.MetadataIndex,
        plain.StorageMeta,
        plain.TensorProperties,
        plain.TensorStorageMetadata,
        plain._MEM_FORMAT_ENCODING,
        filesystem._StorageInfo,
        OrderedDict,
        torch.Size,
        torch.serialization._get_layout,
        pathlib.PosixPath,
    )
}
_DAMAGE = (
    *(pickle.UnpicklingError, AttributeError, EOFError, ImportError, IndexError, KeyError),
    *(OverflowError, RecursionError, RuntimeError, TypeError, ValueError, AssertionError),
)
"""What a damaged folder can raise while it is read."""


class _Plain(pickle.Unpickler):
    """Makes the classes above, and types of numbers."""

    def find_class(self, module_name: str, global_name: str) -> Any:
        found = _CLASSES.get((module_name, global_name))
        if found is None and module_name == "torch":
            found = getattr(torch, global_name, None)
            found = found if isinstance(found, torch.dtype) else None
        if found is None:
            raise pickle.UnpicklingError(f"it names {module_name}.{global_name}, which is not made")
        return found


class Distributed:
    """The tensors of such a folder. Raises InputError where it cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        path = folder / METADATA
        try:
            with open_named(path) as file:
                said = _Plain(file).load()
            self._reader = _Reader(folder, said)
            self.names = frozenset(
                name
                for name, about in said.state_dict_metadata.items()
                if isinstance(about, plain.TensorStorageMetadata)
            )
            """Of all tensors."""
            self._about = said.state_dict_metadata
        except OSError as error:
            raise InputError(f"{path}: {error.strerror}; make it readable") from error
        except _DAMAGE as error:
            raise self._damaged(error) from error

    def tensors(self, names: Collection[str]) -> dict[str, Tensor]:
        """These tensors, on the CPU. Raises InputError where they cannot be read."""
        try:
            found: dict[str, Any] = {
                name: torch.empty(about.size, dtype=about.properties.dtype)
                for name in names
                for about in (self._about[name],)
            }
            with warnings.catch_warnings(action="ignore"):  # that there is one process is meant
                load(found, storage_reader=self._reader, no_dist=True)
        except OSError as error:
            raise InputError(f"{self._folder}: {error.strerror}; make it readable") from error
        except (*_DAMAGE, CheckpointException) as error:
            raise self._damaged(error) from error
        return found

    def _damaged(self, error: BaseException) -> InputError:
        return InputError(
            f"{self._folder}: is no checkpoint of torch.distributed.checkpoint, or damaged "
            f"({' '.join(str(error).split())[:200]}); write it again"
        )


class _Reader(filesystem.FileSystemReader):
    """torch's own, with metadata that were read above."""

    def __init__(self, folder: Path, said: plain.Metadata) -> None:
        super().__init__(folder)
        for info in said.storage_data.values():
            if Path(info.relative_path).name != info.relative_path:
                raise ValueError(f"it names {info.relative_path!r}, which is no file of it")
        self._said = said

    def read_metadata(self, *_: Any, **__: Any) -> plain.Metadata:
        return self._said
