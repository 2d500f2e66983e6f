"""Settings of the whole suite: property tests draw the same examples on every run."""

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
