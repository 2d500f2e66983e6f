"""Whose fault an error is: the machine's, which another one has not, or the work's."""

import errno
import os
import re
from pathlib import Path

import pytest
import torch
import zmq

from bamboo.core.events import FaultScope
from bamboo.errors import (
    CoreMisuse,
    InputError,
    NoDevice,
    StorageFull,
    StorageUnavailable,
    StoreUnavailable,
)
from bamboo.runtime.node.faults import reason_of, scope_of
from bamboo.user_code.loading import entry_of, load_entry
from bamboo.user_code.traces import line_of


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
        *(os_error(n) for n in (errno.EMFILE, errno.ENFILE)),
        zmq.ZMQError(errno.EADDRINUSE),
        RuntimeError("can't start new thread"),
        StorageFull("/tmp: no space left"),
        NoDevice("no NVIDIA driver is loaded", "run it elsewhere"),
        raised(InputError("text.txt: no space left"), os_error(errno.ENOSPC)),
    ],
    ids=line_of,
)
def test_what_the_machine_lacks_is_its_nodes_alone(error: BaseException) -> None:
    assert scope_of(error) is FaultScope.NODE


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        os_error(errno.ENOMEM),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        torch_says(),
        torch.AcceleratorError("an error of a device, whatever its text"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("CUDA unknown error - this may be due to an incorrectly set up environment"),
        RuntimeError("Found no NVIDIA driver on your system"),
        RuntimeError("No CUDA GPUs are available"),
        raised(
            InputError("in a layer"), RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED")
        ),
    ],
    ids=line_of,
)
def test_what_a_gpu_or_the_memory_does_not_manage_is_its_nodes(error: BaseException) -> None:
    assert scope_of(error) is FaultScope.DEVICE


HEADERS = Path(torch.__file__).parent / "include"
OTHER_CARDS = ("hip", "roc", "MIOpen", "Level Zero")


def test_every_text_with_which_torch_begins_an_error_of_a_gpu_is_known() -> None:
    files = ["ATen/cuda/Exceptions.h", "torch/csrc/cuda/nccl.h", "torch/csrc/distributed/c10d"]
    found = [x for file in files for x in (HEADERS / file, *(HEADERS / file).glob("NCCL*.hpp"))]
    text = "".join(file.read_text(encoding="utf-8") for file in found if file.is_file())
    begins = set(re.findall(r'"(\w[\w ]* error(?::| in:)) ', text))
    own = {words for words in begins if not words.startswith(OTHER_CARDS)}
    assert {"CUDA error:", "CUDA driver error:", "cuDNN error:", "NCCL error in:"} <= own
    assert [x for x in own if scope_of(RuntimeError(f"{x} y")) is not FaultScope.DEVICE] == []


def test_too_little_memory_has_a_remedy() -> None:
    for error in (torch.OutOfMemoryError("CUDA out of memory"), MemoryError()):
        full = reason_of(error, run="r", node="n")
        assert 'resume it with cluster.recompute = "layer", more cluster.stages' in full
        assert full.endswith("; `bamboo logs r --node n` has the traceback")
    assert "train.microbatch" not in reason_of(RuntimeError("CUDA error: x"), run="r", node="n")


@pytest.mark.parametrize(
    "error",
    [
        InputError("the data differ"),
        torch.AcceleratorError("CUDA error: device-side assert triggered"),
        RuntimeError("a custom error of a layer"),
        RuntimeError("Expected all tensors to be on the same device, but found cuda:0 and cpu"),
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


LAYER = """
def inner(x):
    raise ValueError("two\\nlines")
def forward(x):
    return inner(x)
"""


def test_a_fault_in_the_users_code_shows_its_lines_and_the_command_for_the_rest(
    tmp_path: Path,
) -> None:
    (tmp_path / "layer.py").write_text(LAYER, encoding="utf-8")
    module = load_entry(entry_of(tmp_path / "layer.py"))
    with pytest.raises(ValueError, match="two") as caught:
        module.forward(1)
    assert reason_of(caught.value, run="r", node="i-1.0").endswith(
        'ValueError: two lines at layer.py, line 3, in inner: raise ValueError("two\\nlines") <- '
        "layer.py, line 5, in forward: return inner(x) <- test_fault.py, line "
        f"{caught.tb.tb_lineno}, in {caught.tb.tb_frame.f_code.co_name}: module.forward(1); "
        "`bamboo logs r --node i-1.0` has the traceback"
    )
    assert reason_of(ValueError("x"), run="r", node="n") == (
        "ValueError: x; `bamboo logs r --node n` has the traceback"
    )
