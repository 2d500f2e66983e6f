"""A command line in a fork of a process that has imported everything: what it would do as a new
interpreter, without the seconds that the imports take.

Rule: a module is executed anew as the program that it is (`runpy`), on descriptors, an environment
and signals as an interpreter finds them at its start; only what it imports is there already. What
it starts of Bamboo is a fork in turn, where no other thread may hold a lock that nobody opens
again. An interpreter with other flags than `-P` and `-s` is started for real.
"""

import atexit
import json
import logging
import os
import random
import runpy
import signal
import site
import subprocess
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from moto.core.utils import get_service_model
from moto.moto_api._internal import mock_random

from bamboo.user_code import local
from cloud.ec2.clients import client_of, mock_session

FLAGS = {"-P", "-s"}
OURS = ("bamboo.", "cli.", "cloud.", "tests.")
AGENTS = (["bamboo.loading", "cli.main", "agent"], ["tests.launches.boots"])
"""A local cloud starts these beside the threads of its mock, which share no lock with them."""


# boto3 and the mock read AWS's models once in a process; EC2's takes longer than most commands.
for _service in ("ec2", "s3", "iam"):
    client_of(mock_session("us-east-1", token=""), _service, read_timeout_s=1.0, attempts=1)
    get_service_model(_service)


def enter(config: Mapping[str, str]) -> int:
    """What the fork server calls; see `tests.warm.Warm.begin`."""
    if config["leads"]:
        os.setsid()
    os.chdir(config["folder"])
    if config["umask"]:
        os.umask(int(config["umask"]))
    return _run(json.loads(config["words"]), json.loads(config["environment"]))


class Popen(subprocess.Popen[Any]):
    """Forks where it was to start a new interpreter with a module of ours."""

    def _execute_child(self, *values: Any, **others: Any) -> None:  # the way in of all platforms
        names = _PARAMETERS[: len(values)]
        asked = dict(zip(names, values, strict=True)) | others
        words = _words_of(asked["args"])
        alone = threading.active_count() == 1 or words[:3] in AGENTS
        if not words or not alone or asked["preexec_fn"] or asked["cwd"]:
            super()._execute_child(*values, **others)  # type: ignore[misc]
            return
        _flush()
        pid = os.fork()
        if pid == 0:
            _become(words, asked)
        self.pid, self._child_created = pid, True
        ours: Any = self
        ours._close_pipe_fds(
            *(asked[name] for name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite")),
            *(asked[name] for name in ("errread", "errwrite")),
        )


_PARAMETERS = (
    *("args", "executable", "preexec_fn", "close_fds", "pass_fds", "cwd", "env", "startupinfo"),
    *("creationflags", "shell", "p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread"),
    *("errwrite", "restore_signals", "gid", "gids", "uid", "umask", "start_new_session"),
    "process_group",
)


def _words_of(command: object) -> list[str]:
    """Module and arguments, where the command is a new interpreter with one of ours."""
    words = [str(word) for word in command] if isinstance(command, list | tuple) else []
    if not words or words.pop(0) != sys.executable:
        return []
    while words and words[0] in FLAGS:
        words.pop(0)
    known = len(words) > 1 and words[0] == "-m" and words[1].startswith(OURS)
    return words[1:] if known else []


def _become(words: Sequence[str], asked: Mapping[str, Any]) -> NoReturn:
    """The child's side; never returns into what its parent was doing."""
    status = 1
    try:
        wanted = [asked[name] for name in ("p2cread", "c2pwrite", "errwrite")]
        kept = [os.dup(number if given == -1 else given) for number, given in enumerate(wanted)]
        for number, descriptor in enumerate(kept):
            os.dup2(descriptor, number)
        _close_all_but({0, 1, 2, *asked["pass_fds"]})
        if asked["start_new_session"]:
            os.setsid()
        if asked["process_group"] >= 0:
            os.setpgid(0, asked["process_group"])
        if asked["umask"] >= 0:
            os.umask(asked["umask"])
        environment = os.environ if asked["env"] is None else asked["env"]
        status = _run(words, dict(environment))
    except SystemExit as leave:
        status = _status_of(leave)
    finally:
        _flush()
        os._exit(status)


def _close_all_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:  # the one by which they were listed
                continue
    for number in kept:
        os.set_inheritable(number, True)


def _run(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Execute `words[0]` as a program with the other words, to its end; its exit status."""
    os.environ.clear()
    os.environ.update(environment)
    _as_at_the_start()
    sys.argv = list(words)
    status = 0
    try:
        with warnings.catch_warnings():
            # That it is imported already is what is meant here.
            warnings.filterwarnings("ignore", category=RuntimeWarning, module="runpy")
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
    except SystemExit as leave:
        status = _status_of(leave)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        raise SystemExit(1) from error
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    return status


def _as_at_the_start() -> None:
    """What an interpreter has before its program begins."""
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.set_wakeup_fd(-1)
    atexit._clear()
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    random.seed()
    led = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [folder for folder in led if folder not in sys.path]
    site.USER_BASE = site.USER_SITE = None  # those of PYTHONUSERBASE, once somebody asks
    local._installed_folders.cache_clear()
    local.is_local.cache_clear()
    mock_random.seed()  # else each local cloud would give its instances the ids of the last one
    sys.excepthook = sys.__excepthook__
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace", closefd=False)
    subprocess.Popen = Popen  # type: ignore[misc]


def _status_of(leave: SystemExit) -> int:
    if leave.code is None:
        return 0
    if isinstance(leave.code, int):
        return leave.code & 0xFF
    sys.stderr.write(f"{leave.code}\n")
    return 1


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
