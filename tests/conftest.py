"""Settings of the whole suite: property tests draw the same examples on every run, signals are
those of a terminal, and what lies in the user's own home (runs, profiles, prices, the account) is
not seen."""

import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.warm import Asked, close_warm

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


# Processes that tests begin elsewhere find `cli` and `cloud` in the checkout, as this one does: an
# installation has them where nobody's import finds them.
ROOT = Path(__file__).resolve().parents[1]
os.environ["PYTHONPATH"] = os.pathsep.join(
    filter(None, (str(ROOT), os.environ.get("PYTHONPATH", "")))
)

# A launch is a dozen processes, each of which would compile the same modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False


def pytest_collection_finish() -> None:
    """Thousands of tests and all that they import stay to the end: whoever looks for cycles in what
    a test makes need not look through these each time, which takes a quarter of the time."""
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _a_home_of_the_suite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    home = tmp_path_factory.mktemp("home")
    ours = {"BAMBOO_HOME": str(home), "BAMBOO_CONFIG": str(home / "cloud.toml")}
    before = {name: os.environ.get(name) for name in ours}
    os.environ.update(ours)
    yield
    for name, value in before.items():
        if value is None:
            del os.environ[name]
        else:
            os.environ[name] = value


@pytest.fixture
def warm_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes with torch that this one starts are forks of the warm process."""
    monkeypatch.setattr("bamboo.wiring.torch_process.Started", Asked)


@pytest.fixture(scope="session", autouse=True)
def _warm_process() -> Iterator[None]:
    yield
    close_warm()
