"""Where a run is logged to, and whether it can be, before anything is started.

Rule: the environment says it, and no library is imported. What is shown or written of addresses and
messages is `without_secrets`.
"""

import netrc
import os
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

from bamboo.config.tree import LogConfig
from bamboo.errors import InputError
from bamboo.extras import need

WANDB = "https://api.wandb.ai"
_SECRET_NAMES = re.compile(r"KEY|TOKEN|SECRET|PASS|HEADERS|CREDENTIAL|AUTH", re.IGNORECASE)
_SECRETS_OF_URLS = (
    (re.compile(r"(?<=://)[^/@\s]+@"), ""),
    (re.compile(r"([?&][\w-]*(?:token|key|secret|password)=)[^&\s'\"]+", re.IGNORECASE), r"\1..."),
)
_LONGEST = 300


def without_secrets(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """One line of what a library said, or of an address, without credentials."""
    text = " ".join(text.split())
    for name, value in environment.items():
        if len(value) > 3 and _SECRET_NAMES.search(name):
            text = text.replace(value, "...")
    for pattern, instead in _SECRETS_OF_URLS:
        text = pattern.sub(instead, text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def check(log: LogConfig, environment: Mapping[str, str] = os.environ) -> None:
    """Raises InputError where a library is not installed, or where the environment lacks what the
    tracker needs."""
    for name in log.to:
        need(name, what=f'log.to = ["{name}"]')
        if lack := _LACKS.get(name, lambda _: "")(environment):
            raise InputError(f'log.to = ["{name}"] {lack}')


def _trackio_lacks(environment: Mapping[str, str]) -> str:
    server = environment.get("TRACKIO_SERVER_URL", "")
    if server and "write_token=" not in server and "TRACKIO_WRITE_TOKEN" not in environment:
        return "logs to TRACKIO_SERVER_URL, which takes a token; set TRACKIO_WRITE_TOKEN"
    return ""


def _wandb_lacks(environment: Mapping[str, str]) -> str:
    own = environment.get("WANDB_CONFIG_DIR", os.path.expanduser("~/.config/wandb"))
    if (
        environment.get("WANDB_MODE", "online") != "online"
        or {"WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE"} & environment.keys()
        or Path(own, "settings").exists()
    ):
        return ""
    host = urlsplit(environment.get("WANDB_BASE_URL", WANDB)).netloc
    home = os.path.expanduser("~")
    for name in (environment.get("NETRC", ""), f"{home}/.netrc", f"{home}/_netrc"):
        try:
            if name and netrc.netrc(name).authenticators(host):
                return ""
        except FileNotFoundError:
            continue
        except (OSError, netrc.NetrcParseError):  # the library may read it all the same
            return ""
    return (
        f"finds no credentials for {host}; `wandb login`, set WANDB_API_KEY, or set "
        "WANDB_MODE=offline"
    )


def _mlflow_lacks(environment: Mapping[str, str]) -> str:
    address = environment.get("MLFLOW_TRACKING_URI", "")
    if not address:
        return (
            "needs MLFLOW_TRACKING_URI, which is not set; set it to the address of your server, "
            "such as http://127.0.0.1:5000"
        )
    scheme = address.partition(":")[0] if ":" in address else "file"
    database = re.match(r"(sqlite|postgresql|mysql|mssql)\b", scheme)
    if database and find_spec("sqlalchemy") is None:
        return (
            f"needs all of mlflow for MLFLOW_TRACKING_URI = {scheme}:...; pip install mlflow, or "
            "name a server"
        )
    allowed = environment.get("MLFLOW_ALLOW_FILE_STORE", "").lower() in ("true", "1")
    if scheme == "file" and not allowed:
        return (
            "writes into a folder, as MLFLOW_TRACKING_URI says, only with "
            "MLFLOW_ALLOW_FILE_STORE=true; set that, or name a server"
        )
    return ""


def _otlp_lacks(environment: Mapping[str, str]) -> str:
    protocol = environment.get("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    if protocol == "http/protobuf":
        return ""
    return (
        f"speaks http/protobuf, and OTEL_EXPORTER_OTLP_PROTOCOL is {protocol!r}; unset it, and "
        "give the collector's HTTP address in OTEL_EXPORTER_OTLP_ENDPOINT"
    )


_LACKS = {
    "trackio": _trackio_lacks,
    "wandb": _wandb_lacks,
    "mlflow": _mlflow_lacks,
    "otlp": _otlp_lacks,
}


def where(log: LogConfig, run: Path, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Tracker -> where it logs to, as far as that is known before it is asked."""
    get = environment.get
    own, project = run / "trackers", f"project {log.project}"
    hugging_face = get("HF_HOME", "~/.cache/huggingface")
    places = {
        "tensorboard": str(own / "tensorboard"),
        "trackio": f"{project}, in "
        + (
            get("TRACKIO_SPACE_ID")
            or get("TRACKIO_SERVER_URL")
            or get("TRACKIO_DIR", f"{hugging_face}/trackio")
        ),
        "wandb": f"{project}, "
        + (
            f"offline, in {get('WANDB_DIR', str(own / 'wandb'))}"
            if get("WANDB_MODE") == "offline"
            else f"at {get('WANDB_BASE_URL', WANDB)}"
        ),
        "mlflow": f"experiment {log.project}, at {get('MLFLOW_TRACKING_URI', '')}",
        "otlp": f"service {log.project}, at "
        + get(
            "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT",
            get("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:4318"),
        ),
    }
    return {name: without_secrets(places[name], environment) for name in log.to}
