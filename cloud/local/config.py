"""What the local cloud reports when it begins, the configuration it then gets, and its answer."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

FILE_REFERENCE = "file:"
"""Prefix of the path of a private file that holds a store's URL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostConfig:
    """One JSON line on the host's standard input. With an empty `store_url` the host starts an
    embedded store. `store_reference` is what may be shown of the store. `agent_environment` goes to
    every agent."""

    run: str
    run_dir: str
    region: str
    worker_entry: str
    store_url: str = field(repr=False)
    store_reference: str
    agent_command: tuple[str, ...]
    agent_environment: Mapping[str, str] = field(default_factory=dict)
    spot_usd_per_hour: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    most_instances: int
    """How many may run at once."""
    calls: tuple[str, ...]
    """The calls that the mock of AWS answers, see `mock_calls`."""

    def line(self) -> bytes:
        """The configuration as it is sent over the pipe."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> "HostConfig":
        """The configuration of a line that `line()` made."""
        raw = json.loads(line)
        raw["agent_command"] = tuple(raw["agent_command"])
        raw["calls"] = tuple(raw["calls"])
        return cls(**raw)


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """One JSON line on the host's standard output once its fork server answers, at this socket."""

    fork_server: str

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> "Begun":
        return cls(**json.loads(line))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """One JSON line on the host's standard output once everything answers; it contains no secret.
    The control socket gives the session token for the mock of AWS at `endpoint_url`."""

    pid: int
    endpoint_url: str
    store_url: str
    control_path: str
    socket_dir: str

    def line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def parse(cls, line: bytes) -> "Ready":
        return cls(**json.loads(line))
