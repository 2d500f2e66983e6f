"""What of the user's environment the processes of a local cloud find.

workers          all of it: their checkpoints may lie in a bucket of the user's, and a model of
                 the user's may want whatever it names
host, agents     none of what was set for AWS or for the way there: whom they ask, and who
                 answers, is on this machine
"""

import os
from collections.abc import Mapping

_PREFIXES = ("AWS_", "BOTO", "MOTO_")
_CA_BUNDLES = ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "SSL_CERT_FILE", "SSL_CERT_DIR")


def without_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """An environment without keys, profiles, endpoints, settings, proxies and CA bundles; nor are
    those found that a user's files hold. A node takes role credentials from its metadata."""
    kept = {
        k: v
        for k, v in environment.items()
        if not k.startswith(_PREFIXES) and not k.lower().endswith("_proxy") and k not in _CA_BUNDLES
    }
    return {**kept, "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}


def leave_settings() -> Mapping[str, str]:
    """Take the user's settings out of this process's own environment; what it was before."""
    users = dict(os.environ)
    os.environ.clear()
    os.environ.update(without_settings(users))
    return users
