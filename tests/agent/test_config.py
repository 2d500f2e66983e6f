"""An agent's settings, read from its environment."""

from pathlib import Path

import pytest

from bamboo.agent.config import AgentConfig
from bamboo.errors import InputError

NEEDED = {
    "BAMBOO_RUN": "calm-fox",
    "BAMBOO_REDIS_URL": "unix:///tmp/s.sock?db=0",
    "BAMBOO_SOCKET_DIR": "/tmp/bb-1",
}


def test_what_is_needed_is_enough() -> None:
    config = AgentConfig.from_environment(NEEDED)
    assert (config.run, config.store_url) == ("calm-fox", "unix:///tmp/s.sock?db=0")
    assert config.socket_dir == Path("/tmp/bb-1")
    assert (config.boot, config.notice_poll_s, config.lifeline_fd) == (0, 2.0, None)


def test_everything_else_may_be_given() -> None:
    more = {
        "BAMBOO_RUN_DIR": "/runs/calm-fox",
        "BAMBOO_SCRATCH_DIR": "/tmp/bb-1/scratch/i-1",
        "BAMBOO_BOOT": "2",
        "BAMBOO_NOTICE_POLL_S": "0.2",
        "BAMBOO_LIFELINE_FD": "0",
        "BAMBOO_HEARD_FILE": "run/heard",
    }
    config = AgentConfig.from_environment({**NEEDED, **more})
    assert (config.run_dir, config.boot) == ("/runs/calm-fox", 2)
    assert config.scratch_dir == "/tmp/bb-1/scratch/i-1"
    assert (config.notice_poll_s, config.lifeline_fd) == (0.2, 0)
    assert config.heard_file == Path("run/heard")


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_what_is_missing_is_named(name: str) -> None:
    rest = {key: value for key, value in NEEDED.items() if key != name}
    with pytest.raises(InputError, match=f"{name} is not set"):
        AgentConfig.from_environment(rest)


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(InputError, match="BAMBOO_BOOT"):
        AgentConfig.from_environment({**NEEDED, "BAMBOO_BOOT": "once"})
