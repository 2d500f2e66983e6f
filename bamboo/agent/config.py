"""The settings that an agent gets at its start from its environment, alike on every cloud."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from bamboo.coord.address import CA_VARIABLE, with_authority
from bamboo.errors import InputError
from bamboo.ids import RunId, run_id


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """Settings of one agent; all times in seconds."""

    run: RunId
    store_url: str
    socket_dir: Path
    """A 0700 directory with a short name, for unix sockets."""
    run_dir: str = ""
    """Where the run's files lie, or empty on a machine that has none."""
    run_url: str = ""
    """Where the run's files lie in a bucket, `s3://bucket/runs/<run>`, on a machine without its
    folder; empty: nowhere."""
    start_url: str = ""
    """Where the files that its launcher stored lie, `s3://bucket/starts/<run>`, which nodes do not
    change; empty: nowhere."""
    scratch_dir: str = ""
    """Where the worker's temporary files lie, for whatever ends this instance to remove; empty:
    where TMPDIR points to."""
    boot: int = 0
    """How often this instance has booted before."""
    notice_poll_s: float = 2.0
    lifeline_fd: int | None = None
    """A pipe whose end means that the cloud around this agent is gone; None: there is none."""
    heard_file: Path | None = None
    """Touched whenever the store answers, for a process that watches this agent from outside; None:
    there is no such process."""
    open_deadline_s: float = 60.0
    """How long the store may take to answer for the first time."""
    store_away_s: float = 3600.0
    """After so long without any answer of the store the agent gives up: nobody is in charge."""
    leave_s: float = 10.0
    """How long the worker may take to leave once the run has ended."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "AgentConfig":
        """Read BAMBOO_RUN, BAMBOO_REDIS_URL, BAMBOO_SOCKET_DIR (needed), BAMBOO_REDIS_CA (of the
        authority that vouches for the store, where its URL names none), BAMBOO_RUN_DIR,
        BAMBOO_RUN_URL, BAMBOO_START_URL, BAMBOO_SCRATCH_DIR, BAMBOO_BOOT, BAMBOO_NOTICE_POLL_S,
        BAMBOO_LIFELINE_FD, BAMBOO_HEARD_FILE. Raises InputError."""

        def needed(name: str) -> str:
            value = environment.get(name, "")
            if not value:
                raise InputError(f"{name} is not set; nodes are started by `bamboo launch`")
            return value

        lifeline = environment.get("BAMBOO_LIFELINE_FD", "")
        heard = environment.get("BAMBOO_HEARD_FILE", "")
        try:
            return cls(
                run=run_id(needed("BAMBOO_RUN")),
                store_url=with_authority(
                    needed("BAMBOO_REDIS_URL"), environment.get(CA_VARIABLE, "")
                ),
                socket_dir=Path(needed("BAMBOO_SOCKET_DIR")),
                run_dir=environment.get("BAMBOO_RUN_DIR", ""),
                run_url=environment.get("BAMBOO_RUN_URL", ""),
                start_url=environment.get("BAMBOO_START_URL", ""),
                scratch_dir=environment.get("BAMBOO_SCRATCH_DIR", ""),
                boot=int(environment.get("BAMBOO_BOOT", "0")),
                notice_poll_s=float(environment.get("BAMBOO_NOTICE_POLL_S", "2.0")),
                lifeline_fd=int(lifeline) if lifeline else None,
                heard_file=Path(heard) if heard else None,
            )
        except ValueError as error:
            raise InputError(
                f"BAMBOO_BOOT, BAMBOO_NOTICE_POLL_S or BAMBOO_LIFELINE_FD: {error}; "
                "nodes are started by `bamboo launch`"
            ) from error
