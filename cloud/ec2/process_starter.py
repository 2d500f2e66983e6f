"""A WorkerStarter that starts a new interpreter: how a worker runs on an instance of its own."""

import json
import os
import subprocess
from collections.abc import Mapping

from bamboo.errors import BambooError
from bamboo.loading import interpreter, steady_environment

MODULE = "bamboo.wiring.worker"
"""The worker that can open a bucket, too."""


class StartedWorker:
    """A worker process, child of the agent."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        """None while it runs, otherwise its exit status (negative: the signal)."""
        return self._process.poll()

    def kill(self) -> None:
        """SIGKILL; safe when it is gone already."""
        self._process.kill()


class ProcessStarter:
    """Starts `python -m bamboo.loading MODULE`, which no environment variable can redirect to other
    code. The configuration goes to its standard input as JSON, so that no process list shows keys.
    Its output goes where the agent's goes."""

    def __init__(self, *, module: str = MODULE) -> None:
        self._module = module

    def start(self, *, config: Mapping[str, str]) -> StartedWorker:
        """Raises BambooError when it cannot be started."""
        try:
            process = subprocess.Popen(
                interpreter(self._module, flags=("-P", "-s")),
                stdin=subprocess.PIPE,
                # Like `-E`, but it keeps the one variable that is ours.
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
            pass  # it ended before it read: `poll` reports that
        return StartedWorker(process)
