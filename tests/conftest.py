"""Settings of the whole suite: property tests draw the same examples on every run, signals are
those of a terminal, and what lies in the user's own home (runs, profiles, prices) is not seen."""

import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

# No deadline per example and no health check on speed: two busy cores are not a failure; the
# timeout of each test (pyproject.toml) is.
settings.register_profile(
    "deterministic",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("deterministic")

# Whoever starts the suite in the background may have had these ignored, and every process of the
# tests would inherit that: an interrupt would interrupt nothing.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture(scope="session", autouse=True)
def _a_home_of_the_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    before = os.environ.get("BAMBOO_HOME")
    os.environ["BAMBOO_HOME"] = str(tmp_path_factory.mktemp("home"))
    yield
    if before is None:
        del os.environ["BAMBOO_HOME"]
    else:
        os.environ["BAMBOO_HOME"] = before
