"""Which card, driver and build of torch figures belong to.

Rule: this process never imports torch; a child asks it, and `nvidia-smi` is asked for the rest.
"""

import re
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.gpu_check.children import ROOT, measure

SMI = "nvidia-smi"
ASKED = ("uuid", "driver_version", "vbios_version")
SMI_S = 30.0


def facts(device: str, *, commit: str = "") -> dict[str, Any]:
    """Date, commit, torch and card, as they stand with each figure. Raises ChildFailed where torch
    sees no such device."""
    seen = measure("card", {"device": device}, timeout_s=180.0)
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": commit or _commit(),
        "device": device,
        **seen,
        **(read_smi(_smi()) if device == "cuda" else {}),
    }


def read_smi(text: str) -> dict[str, str]:
    """UUID, driver and VBIOS out of the first line that `nvidia-smi` printed; {} without one."""
    words = [word.strip() for word in text.strip().splitlines()[0].split(",")] if text else []
    if len(words) != len(ASKED):
        return {}
    return {"uuid": words[0], "driver": words[1], "vbios": words[2]}


def file_name(seen: Mapping[str, Any]) -> str:
    """The name of the results of a card on a day."""
    card = re.sub(r"[^a-z0-9]+", "-", str(seen["card"]).lower()).strip("-")
    return f"{seen['date']}-{card}.json"


def _smi() -> str:
    command = [SMI, f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=SMI_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def _commit() -> str:
    """The commit that is checked out; "" outside of a checkout, or without git."""
    if not (Path(ROOT) / ".git").exists():
        return ""
    command = ["git", "describe", "--always", "--dirty"]
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60.0, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
