"""A real store for tests: the very server that a local run embeds, with a password if wanted."""

import os
import secrets
import shutil
import signal
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import redis

from cloud.local.directory import make_directory
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


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminStore:
    """A store on loopback, in the clear, with an administrator and nobody else."""

    server: StoreServer = field(repr=False)
    port: int
    password: str = field(repr=False)

    @property
    def admin_url(self) -> str:
        return f"redis://admin:{self.password}@127.0.0.1:{self.port}/0"

    def users(self) -> list[str]:
        with redis.Redis.from_url(self.admin_url, decode_responses=True) as admin:
            return [str(name) for name in admin.execute_command("ACL", "USERS")]

    def stop(self) -> None:
        self.server.stop()
        shutil.rmtree(self.server.child.socket_path.parent)


def start_admin_store(*, port: int) -> AdminStore:
    """Start a server that has `admin` alone, and a port of loopback."""
    server, password = start_store(make_directory()), secrets.token_hex(16)
    with redis.Redis(unix_socket_path=str(server.child.socket_path)) as first:
        first.execute_command("ACL", "SETUSER", "admin", "on", f">{password}", "~*", "&*", "+@all")
        first.config_set("bind", "127.0.0.1")
        first.config_set("port", port)
        first.execute_command("ACL", "SETUSER", "default", "off")
    return AdminStore(server=server, port=port, password=password)
