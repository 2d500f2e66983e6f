"""Where a run is logged to, and what is refused before it is started."""

from pathlib import Path

import pytest

from bamboo.config.tree import LogConfig
from bamboo.errors import InputError
from bamboo.trackers import places
from bamboo.trackers.places import check, where, without_secrets


def test_credentials_are_taken_out_of_what_is_shown() -> None:
    environment = {"WANDB_API_KEY": "abcdef", "OTEL_EXPORTER_OTLP_HEADERS": "a=b c", "HOME": "/h"}
    said = "key abcdef\nat https://u:p@h:1/x?write_token=tt&b=2 with a=b c in /h"
    shown = "key ... at https://h:1/x?write_token=...&b=2 with ... in /h"
    assert without_secrets(said, environment) == shown


def test_where_a_run_is_logged_to_is_known_before(tmp_path: Path) -> None:
    to = ("tensorboard", "trackio", "wandb", "mlflow", "otlp")
    log = LogConfig(to=to, project="p")
    environment = {
        "TRACKIO_SERVER_URL": "https://t/?write_token=secret",
        "WANDB_MODE": "offline",
        "MLFLOW_TRACKING_URI": "http://me:pass@m:5000",
    }
    assert where(log, tmp_path, environment) == {
        "tensorboard": f"{tmp_path}/trackers/tensorboard",
        "trackio": "project p, in https://t/?write_token=...",
        "wandb": f"project p, offline, in {tmp_path}/trackers/wandb",
        "mlflow": "experiment p, at http://m:5000",
        "otlp": "service p, at http://localhost:4318",
    }


NOTHING_NEEDED = {
    "trackio": {},
    "wandb": {"WANDB_MODE": "offline"},
    "mlflow": {"MLFLOW_TRACKING_URI": "https://m"},
    "otlp": {},
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(places, "need", lambda *_, **__: None)
    monkeypatch.setattr(places, "find_spec", lambda _: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "environment", "words"),
    [
        ("trackio", {"TRACKIO_SERVER_URL": "https://t"}, "takes a token; set TRACKIO_WRITE_TOKEN"),
        ("wandb", {}, "finds no credentials for api.wandb.ai; `wandb login`, set WANDB_API_KEY"),
        ("wandb", {"WANDB_BASE_URL": "https://w:8080"}, "finds no credentials for w:8080; "),
        ("mlflow", {}, "needs MLFLOW_TRACKING_URI, which is not set; set it to the address"),
        (
            "mlflow",
            {"MLFLOW_TRACKING_URI": "sqlite:///m.db"},
            "needs all of mlflow for MLFLOW_TRACKING_URI = sqlite:...; pip install mlflow",
        ),
        (
            "mlflow",
            {"MLFLOW_TRACKING_URI": "mlruns"},
            "only with MLFLOW_ALLOW_FILE_STORE=true; set that, or name a server",
        ),
        (
            "otlp",
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "speaks http/protobuf, and OTEL_EXPORTER_OTLP_PROTOCOL is 'grpc'; unset it",
        ),
    ],
)
@pytest.mark.usefixtures("home")
def test_what_a_tracker_lacks_is_refused_before_a_start(
    name: str, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(InputError) as refused:
        check(LogConfig(to=(name,)), environment)
    assert str(refused.value).startswith(f'log.to = ["{name}"] ')
    assert words in str(refused.value)
    check(LogConfig(to=(name,)), NOTHING_NEEDED[name])


def test_the_credentials_that_wandb_itself_finds_are_enough(home: Path) -> None:
    log = LogConfig(to=("wandb",))
    check(log, {"WANDB_API_KEY": "k"})
    (home / "mine").write_text("machine api.wandb.ai login user password k\n")
    check(log, {"NETRC": str(home / "mine")})
    with pytest.raises(InputError):
        check(log, {"NETRC": str(home / "mine"), "WANDB_BASE_URL": "https://other"})
    (home / "mine").rename(home / ".netrc")
    (home / ".netrc").chmod(0o600)
    check(log, {})
