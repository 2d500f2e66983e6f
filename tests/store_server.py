"""A real store for tests: the very server that a local run embeds, with a password if wanted."""

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import redis

from cloud.local.valkey import ValkeyChild, start_valkey


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreServer:
    """A running server, of which the caller is the parent."""

    url: str
    child: ValkeyChild = field(repr=False)

    @property
    def pid(self) -> int:
        return self.child.process.pid

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.child.process.wait(timeout=10.0)

    def stop(self) -> None:
        self.child.stop()


def start_store(directory: Path, *, password: str | None = None) -> StoreServer:
    """Start a server on the data in `directory`; again on the same directory brings all back."""
    child = start_valkey(
        data_dir=directory / "data",
        socket_path=directory / "s.sock",
        log_path=directory / "valkey.log",
    )
    if password is None:
        return StoreServer(url=child.url, child=child)
    admin = redis.Redis(unix_socket_path=str(child.socket_path))
    admin.config_set("requirepass", password)
    admin.close()
    url = child.url.replace("unix://", f"unix://:{quote(password, safe='')}@")
    return StoreServer(url=url, child=child)
