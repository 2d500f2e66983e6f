"""Whether the mock of AWS can be reached over the loopback, and what is wrong where it cannot.

Rule: the user's proxies and AWS settings are not used; each question has a deadline.
"""

import errno
import http.client
import socket
from pathlib import Path
from urllib.parse import urlsplit

from cloud.local.metadata import PREFIX

REACH_DEADLINE_S = 2.0
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EADDRNOTAVAIL, errno.ENETDOWN)
_STOPPED_STATES = "Tt"


def loopback_trouble() -> str:
    """Why this machine does not reach itself at 127.0.0.1, with the remedy; "" where it does."""
    try:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            socket.create_connection(listener.getsockname(), timeout=REACH_DEADLINE_S),
        ):
            return ""
    except OSError as error:
        return (
            f"127.0.0.1 cannot be reached on this machine ({_reason(error)}), and the processes of "
            f"a run talk over it; {_remedy(error, 'see what closes it, such as a firewall')}"
        )


def mock_trouble(url: str, *, pid: int) -> str:
    """Why the mock at `url` in process `pid` does not answer, with the remedy; "" if it does."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(
        place.hostname or "", place.port, timeout=REACH_DEADLINE_S
    )
    try:
        connection.request("GET", PREFIX)
        connection.getresponse().read()
    except (OSError, http.client.HTTPException) as error:
        if _is_stopped(pid):
            why, remedy = "it is stopped", f"`kill -CONT {pid}` lets it go on"
        else:
            why = _reason(error)
            remedy = _remedy(error, "see logs/cloud.log in the run's folder")
        return (
            f"the mock of AWS of this run's local cloud, process {pid}, cannot be reached at {url} "
            f"({why}), so no node can be started or ended; {remedy}"
        )
    finally:
        connection.close()
    return ""


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {REACH_DEADLINE_S:g} s"
    return (getattr(error, "strerror", "") or str(error) or type(error).__name__).lower()


def _remedy(error: Exception, otherwise: str) -> str:
    if isinstance(error, OSError) and error.errno in _NO_WAY:
        return "bring the loopback interface up: `ip link set lo up`"
    return otherwise


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat[stat.rindex(")") + 2] in _STOPPED_STATES
