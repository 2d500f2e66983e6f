"""The files of a run whose nodes share no folder. They lie in a bucket, below two prefixes of the
run: one that only its launcher writes, and one that its nodes write.

    data/<sha256>                 the text, as the launcher read it
    data/<digest>/place.json      or where its token file lies (`bamboo/checkpoint/shared_data.py`)
    final/stage-00.safetensors …  what `final/` of a run's folder has
    final/stage-00.json …         {file, sha256, step}, as the node wrote the file beside it
    checked/<name>                what a check of its bits reads (`CHECKED`), under an id of its own

Rule: a reader compares a file's SHA-256 with the one it was told, and does not use one that
differs.
"""

import hashlib
import json
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bamboo.checkpoint.along import fetch_code, fetch_weights, fetch_wheels
from bamboo.checkpoint.final import Final, describe, stage_file, write_stage
from bamboo.checkpoint.open import OpenObjects
from bamboo.checkpoint.shared_data import fetch_tokens
from bamboo.errors import InputError
from bamboo.far_tokens import TOKENS
from bamboo.kept_weights import INIT_FOLDER
from bamboo.named_files import read_own
from bamboo.new_files import write_whole
from bamboo.ports import ObjectStore
from bamboo.topology.strategy import Strategy
from bamboo.user_code.bundle import CODE_FOLDER
from bamboo.user_code.wheels import WHEELS_FOLDER

if TYPE_CHECKING:
    from torch import Tensor

STRATEGY = "strategy.json"
READ_BY_CHECK = ("resolved.json", STRATEGY, "metrics.jsonl", "numerics.json")
"""Files of a run's folder that a check of the bits reads; older releases had no numerics.json."""
CHECKED = "checked/"
DIGESTS = "digests.json"
TEXT = "data"
EVAL_TEXT = "eval"
_DAMAGE = (ValueError, KeyError, TypeError, RecursionError)


def data_name(digest: str) -> str:
    """The name of the object of a text with this SHA-256."""
    return f"data/{digest}"


def put_data(objects: ObjectStore, text: bytearray, digest: str, *, as_read: bool = True) -> None:
    """Store the text of a run for its nodes, by the digest of the run's data; `as_read`: that is
    the text's. Raises InputError when the text then does not have this SHA-256, and
    StorageUnavailable."""
    if as_read and hashlib.sha256(text).hexdigest() != digest:
        raise InputError("the data has changed since it was looked at; launch again")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        write_whole(path, text)
        objects.put_file(data_name(digest), path)


def fetch_data(objects: ObjectStore, digest: str) -> bytearray | None:
    """The text that `put_data` stored, or None; the caller compares its SHA-256. Raises
    StorageUnavailable."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data"
        found = objects.fetch(data_name(digest), path)
        return bytearray(path.read_bytes()) if found else None


def put_checked(objects: ObjectStore, run: Path, final: Final) -> None:
    """Store what a check of the bits of the run in this folder reads beside its data. Of the final
    state that is the digest of each tensor. Raises StorageUnavailable."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / DIGESTS
        write_whole(path, json.dumps(asdict(final)).encode())
        objects.put_file(f"{CHECKED}{DIGESTS}", path)
    for name in READ_BY_CHECK:
        if (run / name).exists():
            objects.put_file(f"{CHECKED}{name}", run / name)


def fetch_checked(objects: ObjectStore, folder: Path, *, bucket: OpenObjects | None = None) -> None:
    """Bring into an empty folder what `put_checked` and `put_data` stored, as far as it is there,
    and tokens from where they lie; `bucket` opens an `s3://` address. Raises InputError where it
    names no data, StorageUnavailable."""
    for name in (*READ_BY_CHECK, DIGESTS):
        objects.fetch(f"{CHECKED}{name}", folder / name)
    try:
        strategy = Strategy.from_json(read_own(folder / STRATEGY))
    except (OSError, *_DAMAGE) as error:
        raise InputError(f"{STRATEGY} of the run to check: {error}; ask for it again") from error
    semantics, job = strategy.semantics, _job_in(folder)
    for digest, place in (
        (semantics.data_digest, folder / TEXT),
        (job.get("evaluated_on", ""), folder / EVAL_TEXT),
    ):
        if digest and fetch_tokens(objects, digest, place, bucket=bucket) is None:
            objects.fetch(data_name(digest), place)
    if identity := semantics.model.get("code"):
        fetch_code(objects, folder / CODE_FOLDER, identity)
    if job.get("weights"):
        fetch_weights(objects, folder / INIT_FOLDER, job["weights"])
    if digest := job.get("wheels", ""):
        fetch_wheels(objects, folder / WHEELS_FOLDER, digest)


def brought_final(folder: Path) -> Final:
    """The digests that `fetch_checked` brought. Raises InputError."""
    try:
        said = json.loads(read_own(folder / DIGESTS))
        return Final(**said | {"damaged": tuple(said["damaged"])})
    except (OSError, *_DAMAGE) as error:
        raise InputError(f"{folder / DIGESTS}: {error}; ask for the check again") from error


def brought_data(folder: Path) -> bytearray | Path:
    """The data that `fetch_checked` brought: a text, or the path of a token file. Raises
    InputError."""
    found = _brought(folder / TEXT)
    if found is None:
        raise InputError(f"{folder / TEXT}: is not there; ask for the check again")
    return found


def brought_eval(folder: Path) -> bytearray | Path | None:
    """The same of the evaluation; None where there is none."""
    return _brought(folder / EVAL_TEXT)


def _brought(path: Path) -> bytearray | Path | None:
    if (path / TOKENS).exists():
        return path / TOKENS
    try:
        return bytearray(path.read_bytes()) if path.exists() else None
    except OSError as error:
        raise InputError(f"{path}: {error}; ask for the check again") from error


def _job_in(folder: Path) -> dict[str, str]:
    """What the job of the run in this folder says outside of its sections."""
    try:
        job = json.loads(read_own(folder / "resolved.json"))["job"]
        return {key: value for key, value in job.items() if isinstance(value, str)}
    except (OSError, AttributeError, *_DAMAGE):
        return {}  # what reads the job says so


def put_stage(
    objects: ObjectStore,
    stage: int,
    tensors: Mapping[str, "Tensor"],
    step: int,
    constant: Collection[str] = (),
) -> None:
    """Store one stage of the final state, then describe it; see `write_stage`. Raises
    StorageUnavailable, OSError."""
    with tempfile.TemporaryDirectory() as folder:
        said = write_stage(folder, stage, tensors, step, constant)
        objects.put_file(f"final/{stage_file(stage)}", Path(folder) / stage_file(stage))
        about = Path(folder) / "about.json"
        text = json.dumps({key: said[key] for key in ("file", "sha256", "step")})
        write_whole(about, text.encode())
        objects.put_file(_about(stage), about)


def fetch_final(objects: ObjectStore, folder: Path, *, stages: int) -> None:
    """Copy the final state of a run into a folder. Raises InputError for a stage that is missing or
    is not what its node wrote, StorageUnavailable, OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    for stage in range(stages):
        path = folder / stage_file(stage)
        text = objects.get(_about(stage))
        if text is None or not objects.fetch(f"final/{stage_file(stage)}", path):
            raise InputError(
                f"{path.name} is not in the run's bucket; the run did not end in order"
            )
        try:
            said = str(json.loads(text)["sha256"])
        except _DAMAGE as error:
            raise InputError(f"{_about(stage)} in the run's bucket is damaged: {error}") from error
        if describe(path)["sha256"] != said:
            path.unlink()
            raise InputError(f"{path.name} was damaged on its way from the bucket; fetch it again")


def _about(stage: int) -> str:
    return f"final/{Path(stage_file(stage)).stem}.json"
