"""Which part of the user's environment the processes of a local cloud get.

workers          all of it: their checkpoints may be in a bucket of the user's, and a model of
                 the user's may need any of it
host, agents     nothing that was set for AWS or for the network path to it: the mock that
                 they call is on this machine
"""

import os
from collections.abc import Mapping

_PREFIXES = ("AWS_", "BOTO", "MOTO_")
_CA_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without keys, profiles, endpoints, settings, proxies and CA bundles. The
    user's files with such settings are not found either. A node takes role credentials from its
    metadata."""
    kept = {
        k: v
        for k, v in environment.items()
        if not k.startswith(_PREFIXES) and not k.lower().endswith("_proxy") and k not in _CA_BUNDLES
    }
    return {**kept, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


def leave_settings() -> Mapping[str, str]:
    """Remove the user's settings from this process's own environment. Returns what it was
    before."""
    users = dict(os.environ)
    os.environ.clear()
    os.environ.update(without_settings(users))
    return users
