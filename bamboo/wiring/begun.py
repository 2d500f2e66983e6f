"""A local cloud that begins before its run is claimed. It imports torch once, for the look at the
model and for the workers after it.

Rule: nothing in it belongs to a run, and it costs nothing. Whatever ends a launch before it has
taken the cloud over also ends the cloud.
"""

import os
from types import TracebackType
from typing import IO, TYPE_CHECKING

from bamboo.config.tree import JobConfig

if TYPE_CHECKING:
    from cloud.local.begun import BegunCloud
    from cloud.local.fork_starter import ForkedWorker


class Begun:
    """At most one such cloud. It ends at the end of the block unless it was taken."""

    def __init__(self) -> None:
        self._cloud: BegunCloud | None = None

    def __enter__(self) -> "Begun":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if cloud := self.take():
            cloud.give_up()

    def begin(self, job: JobConfig, *, preload: tuple[str, ...]) -> None:
        """Begin one, for a job on this machine. Raises BambooError."""
        if job.cloud.provider == "local":
            from cloud.local.begun import begin_local_cloud

            self._cloud = begin_local_cloud(preload)

    def fork(self, entry: str, **config: str) -> "Forked | None":
        """Call `package.module:function` in a fork of the cloud's fork server; None where there is
        no cloud. Raises BambooError."""
        return None if self._cloud is None else Forked(self._cloud, entry, config)

    @classmethod
    def inherited(cls, text: str) -> "Begun":
        """The cloud that a parent process handed over with this text; none for ""."""
        begun = cls()
        if text:
            from cloud.local.begun import BegunCloud, Held

            begun._cloud = BegunCloud(Held.from_json(text))
        return begun

    def to_hand_over(self) -> tuple[str, tuple[int, ...]]:
        """The text for a child, and the descriptors that it must inherit. Then call `let_go`."""
        if self._cloud is None:
            return "", ()
        held = self._cloud.held
        return held.to_json(), held.descriptors

    def let_go(self) -> None:
        """Forget the cloud, because a child has it now."""
        if cloud := self.take():
            cloud.let_go()

    def take(self) -> "BegunCloud | None":
        """Take the cloud out. The caller has to end it."""
        cloud, self._cloud = self._cloud, None
        return cloud


class Forked:
    """A fork that gets one request, as in `torch_process.Asked`."""

    def __init__(self, cloud: "BegunCloud", entry: str, config: dict[str, str]) -> None:
        pipes = [os.pipe() for _ in range(3)]
        (asked, asks), (hears, answers), (listens, says) = pipes
        self.stdin: IO[str] = os.fdopen(asks, "w")
        self.stdout: IO[str] = os.fdopen(hears)
        self.stderr: IO[str] = os.fdopen(listens)
        theirs = (asked, answers, says)
        try:
            self._worker: ForkedWorker = cloud.fork(entry=entry, config=config, streams=theirs)
        except BaseException:
            for ours in (self.stdin, self.stdout, self.stderr):
                ours.close()
            raise
        finally:
            for their in theirs:
                os.close(their)

    @property
    def pid(self) -> int:
        return self._worker.pid

    def wait(self) -> None:
        self._worker.wait()

    def kill(self) -> None:
        self._worker.kill()

    def end(self) -> int:
        self._worker.kill()
        status = self._worker.wait()
        self._worker.close()
        return status
