"""From SIGKILL to the end of the victim's connection, and until its memory on the card is free."""

import json
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.gpu_check.measure.device import wait

GIB = 2**30
START_S, END_S, FREE_S = 120.0, 60.0, 30.0
SLACK_BYTES = 2**26
"""Memory that counts as none: the driver keeps a little more or less from time to time."""


def holder(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Holds memory and a connection until it is killed."""
    import torch

    device, pinned = asked["device"], asked["device"] == "cuda"
    with socket.create_connection(("127.0.0.1", asked["port"])) as said:
        held = []
        if asked["pinned_gib"]:
            size = int(asked["pinned_gib"] * GIB)
            held.append(torch.ones(size, dtype=torch.uint8, pin_memory=pinned))
        size = max(int(asked["card_gib"] * GIB), 1)
        held.append(torch.ones(size, dtype=torch.uint8, device=device))
        wait(device)
        said.sendall(b"r")
        select.select([said], [], [], START_S)
    return {}


def sigkill(asked: Mapping[str, Any]) -> Mapping[str, Any]:
    """Lists of seconds over `repeats` kills, and the bytes of the card that a victim took beyond
    those that it asked for."""
    eof, free, more = [], [], []
    for _ in range(asked["repeats"]):
        one = _one(asked)
        eof.append(one[0])
        if one[1] is not None:
            free.append(one[1])
            more.append(one[2])
    return {"eof_s": eof, "free_s": free, "context_bytes": more}


def _one(asked: Mapping[str, Any]) -> tuple[float, float | None, int]:
    before = _free_bytes(asked["device"])
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(START_S)
        words = {**asked, "port": server.getsockname()[1]}
        command = [sys.executable, "-m", "benchmarks.gpu_check.measure", "holder"]
        victim = subprocess.Popen([*command, json.dumps(words)])
        try:
            heard, _ = server.accept()
            with heard:
                heard.settimeout(START_S)
                if not heard.recv(1):
                    raise SystemExit(f"the victim ended with {victim.wait(END_S)}")
                taken = before - _free_bytes(asked["device"])
                begin_s = time.perf_counter()
                victim.kill()
                heard.settimeout(END_S)
                _to_the_end(heard)
                eof_s = time.perf_counter() - begin_s
                free_s = _until_free(asked["device"], before, begin_s)
        finally:
            victim.kill()
            victim.wait(END_S)
    return eof_s, free_s, taken - int(asked["card_gib"] * GIB)


def _to_the_end(heard: socket.socket) -> None:
    try:
        while heard.recv(64):
            pass
    except ConnectionResetError:
        return  # an end as well


def _until_free(device: str, before: int, begin_s: float) -> float | None:
    if device != "cuda":
        return None
    while _free_bytes(device) < before - SLACK_BYTES:
        if time.perf_counter() - begin_s > FREE_S:
            raise SystemExit(f"the victim's memory was not free after {FREE_S:g} s")
        time.sleep(0.002)
    return time.perf_counter() - begin_s


def _free_bytes(device: str) -> int:
    import torch

    return int(torch.cuda.mem_get_info()[0]) if device == "cuda" else 0
