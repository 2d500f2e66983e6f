"""Faults of where checkpoints go, to plant in a forked worker; see `faults`."""

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from bamboo.checkpoint.directory import DirectoryStore
from bamboo.checkpoint.manifest import step_of
from bamboo.runtime.state.checkpoints import Checkpoints, Complete, Save, Tidy
from cloud.ec2.s3 import S3Store

PART_BYTES = 1 << 16


@contextmanager
def _no_shard_fits(when: bool) -> Iterator[None]:
    """The end of the disk as the kernel tells it, for files of a shard's length."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    if when:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def full_disk(until_step: str) -> None:
    """No shard can be written anywhere while a checkpoint of an earlier step is being made."""
    honest = Checkpoints.write

    def write(self: Checkpoints, item: Save | Complete | Tidy) -> None:
        with _no_shard_fits(item.step < int(until_step)):
            honest(self, item)

    Checkpoints.write = write  # type: ignore[method-assign]


def full_directory(until_step: str) -> None:
    """Only where the checkpoints lie is no room, not for the file on the way there."""
    honest = DirectoryStore.put_file

    def put_file(self: DirectoryStore, name: str, path: Path) -> None:
        step = step_of(name)  # None of what is constant, which belongs to no step
        with _no_shard_fits(step is not None and step < int(until_step)):
            honest(self, name, path)

    DirectoryStore.put_file = put_file  # type: ignore[method-assign]


def stopped_writer(where: str) -> None:
    """`Save|Complete,step`: the process stops (SIGSTOP) just before it writes that, once."""
    kind, step = where.split(",")
    honest = Checkpoints.write

    def write(self: Checkpoints, item: Save | Complete | Tidy) -> None:
        if (type(item).__name__, item.step) == (kind, int(step)):
            # Meant for this thread: of a process, another one may take it, and this one go on.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        honest(self, item)

    Checkpoints.write = write  # type: ignore[method-assign]


def bucket_at(endpoint_url: str) -> None:
    """No fault: the cloud's storage is there, and a shard goes up in several parts."""
    os.environ |= {
        "AWS_ENDPOINT_URL": endpoint_url,
        "AWS_ACCESS_KEY_ID": "testing",
        "AWS_SECRET_ACCESS_KEY": "testing",
    }
    defaults = S3Store.__init__.__kwdefaults__
    assert defaults is not None
    defaults["part_bytes"] = PART_BYTES


FAULTS: dict[str, Callable[[str], None]] = {
    fault.__name__: fault for fault in (full_disk, full_directory, stopped_writer, bucket_at)
}
