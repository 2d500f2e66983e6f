"""A launcher in the background: a process in a session of its own that leads a detached run.

The parent hands over the run's lock and the end of a pipe, and waits until the child says in one
JSON line that the run can be reached, or why not: `{"ok": true}` or `{"error": …, "exit_code": …}`.
Its output is `logs/launcher.log` in the run's folder.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from bamboo.controller import attempt
from bamboo.errors import BambooError, InputError, StoreNotReached, StoreUnavailable
from bamboo.loading import interpreter, let_outlive
from bamboo.new_files import open_to_append
from bamboo.runs import lock
from bamboo.runs.lock import Lock
from bamboo.runs.ports import Screen
from bamboo.runs.run_folder import RunFolder
from bamboo.signals import Interrupts
from bamboo.wiring.begun import Begun

READY_DEADLINE_S = 180.0
GIVE_UP_S = 60.0
"""A launcher that gives up its start may take so long to remove what it started."""
_INTERRUPTED = 130


def start(folder: RunFolder, held: Lock, begun: Begun, *, fresh: bool) -> None:
    """Start a launcher, hand it the lock and the local cloud that has `begun`, and return when the
    run can be reached. `fresh` says that the run was just claimed; otherwise it is going on without
    a launcher.

    Raises what the launcher could not do. An interrupt during a fresh start undoes the start.
    """
    answers, speaks = os.pipe()
    logs = folder.path / "logs"
    logs.mkdir(exist_ok=True)
    command = interpreter("cli.main", "launcher", folder.id)
    text, descriptors = begun.to_hand_over()
    fds = ["--lock-fd", str(held.descriptor), "--ready-fd", str(speaks), "--begun", text]
    try:
        with open_to_append(logs / "launcher.log") as log:
            process = subprocess.Popen(
                [*command, *fds, *(["--fresh"] if fresh else [])],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=(held.descriptor, speaks, *descriptors),
            )
        begun.let_go()
    finally:
        os.close(speaks)
        held.close()
    try:
        line = _line(answers, deadline_s=READY_DEADLINE_S)
    except KeyboardInterrupt:
        if not fresh:
            raise  # the run needs the new launcher with or without us
        process.send_signal(signal.SIGINT)
        line = _line(answers, deadline_s=GIVE_UP_S)
        if not line:  # it was still loading, and had started nothing
            process.wait(timeout=GIVE_UP_S)
            raise
    finally:
        os.close(answers)
    if process.poll() is None:
        let_outlive(process)
    _raise_unless_ok(folder, line)


def keep(folder: RunFolder) -> bool:
    """Start a launcher for a detached run that has none. Returns whether it had none. Raises what
    the launcher could not do, and InputError where nothing is left of the run."""
    held = lock.take(folder)
    if held is None:
        return False
    if folder.receipt.exists():  # the last launcher has just gone, its work done
        held.close()
        return False
    start(folder, held, Begun(), fresh=False)
    return True


def live(
    folder: RunFolder,
    begun: Begun,
    *,
    screen: Screen,
    end_text: Callable[[Mapping[str, Any]], str],
    lock_fd: int,
    ready_fd: int,
    fresh: bool,
) -> int:
    """Lead the run as its launcher in the background. `end_text` says a receipt in words. Returns
    the exit status."""
    held = Lock(lock_fd)
    os.set_inheritable(ready_fd, False)
    told = False

    def tell(answer: dict[str, Any]) -> None:
        nonlocal told
        if not told:
            told = True
            with contextlib.suppress(BrokenPipeError):  # the parent no longer waits
                os.write(ready_fd, json.dumps(answer).encode() + b"\n")
            os.close(ready_fd)

    lead: Callable[..., dict[str, Any] | None] = attempt.take_up
    if fresh:
        lead = partial(attempt.launch, begun=begun)
    interrupts = Interrupts(detached=True)
    try:
        body = lead(folder, screen, interrupts, ready=lambda: tell({"ok": True}))
    except BambooError as error:
        away = isinstance(error, StoreUnavailable | StoreNotReached)
        tell({"error": str(error), "exit_code": error.exit_code, "store_away": away})
        raise
    if body is None:
        screen.note(f"{folder.id}: this launcher leaves; the run goes on")
        held.close()
        return 0
    tell({"error": body["sentence"], "exit_code": body["exit_code"]})
    screen.note(end_text(body))
    held.close()
    return int(body["exit_code"])


def _line(descriptor: int, *, deadline_s: float) -> bytes:
    """The launcher's line, or nothing where it wrote none. Raises BambooError at the deadline."""
    end_s = time.monotonic() + deadline_s
    received = b""
    while not received.endswith(b"\n"):
        readable, _, _ = select.select([descriptor], [], [], max(0.0, end_s - time.monotonic()))
        if not readable:
            raise BambooError(
                f"the launcher in the background said nothing for {deadline_s:g} s; "
                "see logs/launcher.log in the run's folder"
            )
        part = os.read(descriptor, 65536)
        if not part:
            return b""
        received += part
    return received


def _raise_unless_ok(folder: RunFolder, line: bytes) -> None:
    if not line:
        log = folder.path / "logs" / "launcher.log"
        last = log.read_text(errors="replace").strip().splitlines()[-1:] or ["nothing"]
        raise BambooError(f"the launcher in the background ended; its log ends: {last[0]}")
    answer = json.loads(line)
    if "ok" in answer:
        return
    if answer.get("store_away"):
        raise StoreUnavailable(answer["error"])
    match answer["exit_code"]:
        case InputError.exit_code:
            raise InputError(answer["error"])
        case code if code == _INTERRUPTED:
            raise KeyboardInterrupt
        case _:
            raise BambooError(answer["error"])
