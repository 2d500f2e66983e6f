"""The key material of a run whose workers talk over tcp.

Rule: it is made for each run, and kept in its store alone. pyzmq is imported only where keys are
made.
"""

import json

from bamboo.config.tree import JobConfig


def transport_keys(job: JobConfig) -> dict[str, str]:
    """The document `keys` of a run whose workers talk over tcp: CURVE keys made for this run alone;
    none where a 0700 directory keeps other users out."""
    if job.cluster.transport == "ipc":
        return {}
    import zmq

    pairs = {name: zmq.curve_keypair() for name in ("server", "client")}
    keys = {
        f"{name}_{half}": key.decode()
        for name, pair in pairs.items()
        for half, key in zip(("public", "secret"), pair, strict=True)
    }
    return {"keys": json.dumps(keys)}
