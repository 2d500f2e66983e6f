"""A WorkerStarter that starts a new interpreter: how a worker runs on an instance of its own."""

import json
import os
import subprocess
from collections.abc import Mapping

from bamboo.errors import BambooError
from bamboo.loading import interpreter, steady_environment

MODULE = "cli.worker"
"""The worker that can open a bucket, too."""


class StartedWorker:
    """A worker process, child of the agent."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """None while it runs, else its exit status (negative: the signal)."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL; safe when it is gone already."""
        self._process.kill()


class ProcessStarter:
    """Starts `python -m bamboo.loading MODULE`, which no variable leads to other code; the
    configuration goes to its standard input as JSON, so that keys stand in no process list. Its
    output goes where the agent's goes."""

    def __init__(self, *, module: str = MODULE) -> None:
        self._module = module

    def start(self, *, config: Mapping[str, str]) -> StartedWorker:
        """Raises BambooError when it cannot be started at all."""
        try:
            process = subprocess.Popen(
                interpreter(self._module, flags=("-P", "-s")),
                stdin=subprocess.PIPE,
                # As `-E` would have it, but for the one variable that is ours.
                env=steady_environment(
                    {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
                ),
            )
        except OSError as error:
            raise BambooError(f"cannot start a worker: {error}") from error
        assert process.stdin is not None
        try:
            with process.stdin as pipe:
                pipe.write(json.dumps(dict(config)).encode())
        except BrokenPipeError:
            pass  # it ended before it read: `poll` says so
        return StartedWorker(process)
