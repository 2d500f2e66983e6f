"""Token files that a job names by `s3://BUCKET/PREFIX`: the stand-in of one on this machine.

Rule: header and hashes are read where the file lies, and nothing of the tokens. What a run could
not read there is refused by key, value and remedy before anything is started.
"""

import hashlib
from pathlib import Path

from bamboo.config.home import home
from bamboo.config.tree import DataConfig, JobConfig
from bamboo.errors import InputError, StorageUnavailable
from bamboo.far_tokens import FAR, Place, make_room_for, opened
from bamboo.new_files import write_whole
from bamboo.token_files import FILES, HEADER, TREE, beside

S3 = "s3://"
FOLDER = "far"
"""In `$BAMBOO_HOME/data`."""
PREPARE_THERE = "`bamboo prepare` writes its hashes where the file is; put them there, too"
ONLY_MINE = 0o700


def is_far(data: DataConfig) -> bool:
    """Whether these data lie in a bucket."""
    return data.path.startswith(S3)


def stand_in(job: JobConfig, data: DataConfig, *, section: str) -> Path:
    """The stand-in for the token file that these data name, as the file is now. Raises InputError
    where it is not there, cannot be read, or is not prepared."""

    def refuse(problem: str, remedy: str) -> InputError:
        key = f"{section}.path"
        return InputError.at(
            file=job.file, key=key, value=data.path, problem=problem, remedy=remedy
        )

    url, _, name = data.path.rpartition("/")
    try:
        objects = opened(url, job.cloud.region)
        found = objects.sizes(name)
        sizes = {ending: found[f"{name}{ending}"] for ending in FILES if f"{name}{ending}" in found}
        if "" not in sizes:
            raise refuse("is no object that these credentials see", "correct the path")
        for ending, remedy in (
            (HEADER, "put the header there, as beside a file"),
            (TREE, PREPARE_THERE),
        ):
            if ending not in sizes:
                raise refuse(f"has no {name}{ending} beside it", remedy)
        place = Place(url=url, name=name, sizes=sizes, region=job.cloud.region)
        path = _folder(data.path) / name
        path.parent.mkdir(mode=ONLY_MINE, parents=True, exist_ok=True)
        for ending, size_bytes in sizes.items():
            at = beside(path, ending)
            if ending in (HEADER, TREE):
                if not objects.fetch(f"{name}{ending}", at):
                    raise refuse(f"has no {name}{ending} beside it any more", "launch again")
            elif not at.exists() or at.stat().st_size != size_bytes:
                make_room_for(at, size_bytes)
        for ending in set(FILES) - sizes.keys():
            beside(path, ending).unlink(missing_ok=True)
        write_whole(beside(path, FAR), place.to_json())
    except StorageUnavailable as error:
        raise refuse(
            f"cannot be read: {str(error).rpartition('; ')[0] or error}",
            "see that the bucket is there, and that these credentials may list and read it",
        ) from error
    except OSError as error:
        problem = f"has no stand-in in {home()}: {error.strerror}"
        raise refuse(problem, "make room, or set BAMBOO_HOME") from error
    return path


def _folder(url: str) -> Path:
    return home() / "data" / FOLDER / hashlib.sha256(url.encode()).hexdigest()[:32]
