"""What the tests with real processes share: starting a small local cloud, and looking at it."""

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bamboo.ids import RunId
from cloud.ec2.provider import Ec2Provider
from cloud.ec2.requests import Ec2Settings
from cloud.fleet import Fleet
from cloud.local.begun import READY_DEADLINE_S, BegunCloud
from cloud.local.session import members
from cloud.local.start import LocalCloud, start_local_cloud
from cloud.provider import Market
from testbed.waiting import wait_until

ACTORS = Path(__file__).parent / "actors"
PRICES = {"g4dn.xlarge": {"us-east-1a": 0.2, "us-east-1b": 0.3}}
RUN = RunId("test-run")
GONE_S = 15.0
"""So long may it take until nothing of a run is left, after whatever end."""


def start(
    run_dir: Path,
    *,
    preload: str = "dummy_worker",
    begun: BegunCloud | None = None,
    deadline_s: float = READY_DEADLINE_S,
) -> LocalCloud:
    """A local cloud whose agents and workers are the dummy ones; PYTHONPATH must hold ACTORS."""
    return start_local_cloud(
        run=RUN,
        run_dir=run_dir,
        preload=(preload,),
        begun=begun,
        worker_entry="dummy_worker:main",
        agent_command=(sys.executable, str(ACTORS / "dummy_agent.py")),
        spot_usd_per_hour=PRICES,
        deadline_s=deadline_s,
    )


def provider_of(cloud: LocalCloud) -> Ec2Provider:
    return Ec2Provider.connect(
        settings=Ec2Settings(region="us-east-1", image="ami-12345678"),
        instance_types=["g4dn.xlarge"],
        zones=["us-east-1a", "us-east-1b"],
        markets=[Market.SPOT],
        on_demand_usd_per_hour={},
        endpoint_url=cloud.endpoint_url,
        token=cloud.token,
    )


def fleet_of(provider: Ec2Provider, run_dir: Path) -> Fleet:
    return Fleet(provider, run=RUN, intents=run_dir / "intents.jsonl")


def told(cloud: LocalCloud, instance: str) -> Mapping[str, Any]:
    """What the control socket tells about one instance."""
    return next(i for i in cloud.control.instances() if i["instance"] == instance)


def lines(path: Path | str) -> list[Any]:
    """The whole JSON lines of a file so far."""
    file = Path(path)
    if not file.exists():
        return []
    whole = [line for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in whole if line.startswith("{")]


def said(cloud: LocalCloud, instance: str, key: str) -> Any:
    """The first line with `key` in the log of an instance's agent and worker, waited for."""

    def look() -> Any:
        found = [line for line in lines(told(cloud, instance)["log"]) if key in line]
        return found[0] if found else None

    return wait_until(look, what=f"{key!r} in the log of {instance}", timeout_s=20.0)


def running(fleet: Fleet, cloud: LocalCloud, count: int) -> list[str]:
    """Bring the fleet to `count`, wait for the new ones' workers; ids of the new ones."""
    launched = [one.instance for one in fleet.ensure(count).launched]
    for instance in launched:
        wait_until(
            lambda instance=instance: any(
                i["instance"] == instance for i in cloud.control.instances()
            ),
            what=f"{instance} is started",
        )
        said(cloud, instance, "worker")
    return launched


def alive(pid: int) -> bool:
    """Whether a process runs (a zombie does not)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat[stat.rindex(")") + 2] not in "ZX"


def nothing_left(cloud: LocalCloud) -> Callable[[], bool]:
    return lambda: not members(cloud.pid) and not cloud.socket_dir.exists()


def expect_nothing_left(cloud: LocalCloud) -> None:
    """No process of the cloud's session and no directory within 15 s."""
    wait_until(
        nothing_left(cloud),
        what=f"all gone of session {cloud.pid} and {cloud.socket_dir}",
        timeout_s=GONE_S,
    )


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


def member(cloud: LocalCloud, part: str) -> int:
    """The process of the cloud whose command line holds `part`."""

    def look() -> int | None:
        found = [pid for pid in members(cloud.pid) if part in command_line(pid)]
        return found[0] if found else None

    return wait_until(look, what=f"a process of {part}")
