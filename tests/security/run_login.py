"""What the login of one run may do to another run of the same store.

`.venv/bin/python -m tests.security.run_login URL OTHER` logs in as an instance would and tries each
command that reads, changes or spies on the run OTHER, by itself and in scripts that say which keys
they use and that do not. It lists what the server did; its exit status is 1 if there is anything, 2
if the login gets nowhere. URL is that of the run's login, redis://USER:PASSWORD@HOST:PORT; with TLS
rediss://, and ?ssl_ca_certs=FILE behind it. What it tries destroys what it can reach.
"""

import argparse
import contextlib
import hashlib
import sys
from collections.abc import Sequence
from typing import Any

import redis

MADE = "made-by-a-stranger"
"""The server-side library that it tries to leave behind."""


def tried(other: str) -> list[list[str]]:
    """The commands, each as its words; those that would end the others come last."""
    key, log = f"bamboo:{other}:state", f"bamboo:{other}:log"
    library = f"#!lua name={MADE}\nredis.register_function('f', function() return 1 end)"
    writes = f"return redis.call('HSET', '{key}', 'version', '9')"
    lines = (
        *(
            f"HGETALL {key}",
            f"EXISTS {key}",
            f"XREAD STREAMS {log} 0",
            f"TYPE {key}",
            f"DUMP {key}",
        ),
        *(f"HSET {key} version 9", f"XADD {log} * e x", f"EXPIRE {key} 1", f"SET {key} x"),
        *(f"RENAME {key} bamboo:mine", f"COPY {key} bamboo:mine", f"MOVE {key} 1", f"DEL {key}"),
        *("KEYS *", "SCAN 0", "INFO", "ACL LIST", "ACL WHOAMI", "CONFIG GET *", "CLIENT LIST"),
        *("SLOWLOG GET", "PUBLISH c m", "SCRIPT EXISTS x", "FUNCTION LIST"),
        *("FUNCTION DUMP", f"FCALL f 1 {key}", f"FCALL_RO f 1 {key}"),
    )
    ending = (
        *(
            "SCRIPT FLUSH",
            "SCRIPT KILL",
            "FUNCTION FLUSH",
            "ACL SETUSER default on nopass ~* +@all",
        ),
        *(
            "CONFIG SET requirepass x",
            "CLIENT KILL TYPE normal",
            "SWAPDB 0 1",
            "FLUSHDB",
            "FLUSHALL",
        ),
        *("REPLICAOF NO ONE", "SHUTDOWN NOSAVE"),
    )
    return [
        *(line.split() for line in lines),
        ["EVAL", writes, "0"],
        ["EVAL", writes, "1", key],
        ["FUNCTION", "LOAD", "REPLACE", library],
        *(line.split() for line in ending),
    ]


def done_to(url: str, other: str) -> list[str]:
    """Each thing that the login in `url` could do to the run `other`, or to what all runs share.
    Raises RedisError where the server is not reached, or does not take the login."""
    key = f"bamboo:{other}:state"
    client: Any = redis.Redis.from_url(url, socket_timeout=5.0)
    with client:
        with contextlib.suppress(redis.exceptions.NoPermissionError):
            client.ping()
        scripts = []
        for call, more in (("HGETALL", ""), ("HSET", ", 'version', '9'"), ("DEL", "")):
            for where in ("KEYS[1]", f"'{key}'"):
                text = f"return redis.call('{call}', {where}{more})"
                _did(client, ["SCRIPT", "LOAD", text])  # of no use by itself
                scripts.append(["EVALSHA", hashlib.sha1(text.encode()).hexdigest(), "1", key])
        return [" ".join(words) for words in (*scripts, *tried(other)) if _did(client, words)]


def _did(client: Any, words: Sequence[str]) -> bool:
    try:
        client.execute_command(*words)
    except redis.exceptions.ResponseError as error:
        # Any other refusal comes from a server that would have done it.
        said = str(error).lower()
        return "permission" not in said and "no matching script" not in said
    except redis.exceptions.ConnectionError:
        return True  # it ends itself, or this connection
    return True


def main(arguments: Sequence[str]) -> int:
    """The command; see the top of the file."""
    parser = argparse.ArgumentParser(prog="python -m tests.security.run_login")
    parser.add_argument("url", help="of the run's login: redis://USER:PASSWORD@HOST:PORT")
    parser.add_argument("other", help="the id of another run in that store")
    asked = parser.parse_args(arguments)
    other = asked.other
    try:
        found = done_to(asked.url, other)
    except (redis.exceptions.RedisError, ValueError) as error:
        parser.error(f"nothing was tried: {error}")
    sys.stdout.write("\n".join(found or [f"nothing could be done to {other}"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
