"""Whose fault an error is: the machine's, which another one has not, or the work's."""

import errno
import os

import pytest
import torch
import zmq

from bamboo.core.events import FaultScope
from bamboo.errors import CoreMisuse, InputError, StorageFull, StorageUnavailable, StoreUnavailable
from bamboo.runtime.fault import line_of, scope_of


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def raised(error: BaseException, cause: BaseException) -> BaseException:
    error.__cause__ = cause
    return error


def torch_says() -> RuntimeError:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 50)
    return caught.value


@pytest.mark.parametrize(
    "error",
    [
        *(os_error(n) for n in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)),
        *(os_error(n) for n in (errno.EMFILE, errno.ENFILE, errno.ENOMEM)),
        zmq.ZMQError(errno.EADDRINUSE),
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory"),
        torch_says(),
        RuntimeError("can't start new thread"),
        StorageFull("/tmp: no space left"),
        raised(InputError("text.txt: no space left"), os_error(errno.ENOSPC)),
    ],
    ids=line_of,
)
def test_what_the_machine_lacks_is_its_nodes_alone(error: BaseException) -> None:
    assert scope_of(error) is FaultScope.NODE


@pytest.mark.parametrize(
    "error",
    [
        InputError("the data differ"),
        ValueError("in a layer"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        FileNotFoundError(errno.ENOENT, "a layer's file"),
        raised(RuntimeError("in a layer"), KeyError("x")),
        CoreMisuse("a mistake of ours"),
        StorageUnavailable("the final state cannot be written"),
        StoreUnavailable("away"),
    ],
    ids=line_of,
)
def test_what_the_work_meets_it_would_meet_anywhere(error: BaseException) -> None:
    assert scope_of(error) is FaultScope.RUN


def test_a_fault_is_said_in_one_line() -> None:
    assert line_of(ValueError("two\n  lines")) == "ValueError: two lines"
