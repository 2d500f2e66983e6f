"""The store in Redis or Valkey (command set of Redis 6.2): one run under `bamboo:<run>:`.

    state      hash    version, state (JSON), store_id
    log        stream  entry of version V under the id V-1, field body
    documents  hash    name -> text; none is ever changed
    offers     hash    version, offer, began_s: while the run is lost
    leases     hash    node -> "seconds.micros payload", the server's time
    s:<name>   stream  records, field body

Rule: whatever must happen together happens in one script of `lua/`. The server's clock is the only
clock. A blocked read has a connection of its own, so it never delays a commit. No call waits longer
than its deadline. Errors of the client library do not leave this file.
"""

import contextlib
import math
import socket
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib import resources
from typing import Any, TypeVar

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from bamboo.coord.address import CA_VARIABLE, Address, read_address
from bamboo.coord.refusals import Refusal, refusal_of
from bamboo.coord.stored import body_of, entry_of, lease_of, version_of
from bamboo.errors import (
    InputError,
    StoreNotReached,
    StoreRefused,
    StoreRefuses,
    StoreUnavailable,
)
from bamboo.ids import NodeId, RunId
from bamboo.ports import Entry, Lease, Offers, Snapshot

_BLOCK_S = 1.0
"""A long wait is split into pieces of this length, so that the loss of a server is noticed."""
_STREAMS = ("metrics", "ledger")
"""All record streams of a run."""
_GREETING_S = 0.5
ROOM_BYTES = 1 << 20
"""Least free memory that a store must have for a run."""
_TRIED_OUT_S = 300
"""Keys of a test that was killed expire after this time."""
_READ_COUNT = 1000
"""Most entries or records in one answer; the caller asks again for more."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSeen:
    """What a store reports of itself; its time is Unix time."""

    software: str
    version: str
    now_s: float


class RedisStore:
    """One run in Redis or Valkey (ports.Store). It connects on first use.

    `deadline_s` bounds one call: a quarter of it for connecting, the rest for the login and for
    the answer. Raises StoreRefused for a URL that is not a store's.
    """

    def __init__(self, url: str, run: RunId, *, deadline_s: float) -> None:
        address = read_address(url)
        self.shown_url = address.shown
        self._run = run
        self._under = ""
        """The part of a key between the run's name and the key's own name."""
        self._address = address
        self._closed = False
        answer_s = deadline_s * 3 / 8
        connect_s = deadline_s / 4
        # The client library's annotations differ between its releases, hence Any.
        self._commands: Any = connection(address, connect_s=connect_s, answer_s=answer_s)
        self._waiting: Any = connection(address, connect_s=connect_s, answer_s=answer_s + _BLOCK_S)
        self._create = self._script("create")
        self._read = self._script("read")
        self._commit = self._script("commit")
        self._add_document = self._script("add_document")
        self._offer = self._script("offer")
        self._refill = self._script("refill")
        self._beat = self._script("beat")
        self._leases = self._script("leases")

    def create(self, *, state: str, entry: str, documents: Mapping[str, str]) -> bool:
        texts = [text for pair in documents.items() for text in pair]
        keys = [self._key("state"), self._key("log"), self._key("documents")]
        arguments = [uuid.uuid4().hex, state, entry, *texts]
        return bool(self._call(lambda: self._create(keys=keys, args=arguments)) == 1)

    def read(self) -> Snapshot:
        version, state, store_id, seconds, micros = self._call(
            lambda: self._read(keys=[self._key("state")])
        )
        if version is None:
            raise self._no_run()
        return Snapshot(
            version=version_of(version),
            state=state,
            now_s=_seconds(seconds, micros),
            store_id=store_id,
        )

    def document(self, name: str) -> str:
        text = self._call(lambda: self._commands.hget(self._key("documents"), name))
        if text is None:
            raise InputError(f"run {self._run} has no document {name!r} in its store")
        return str(text)

    def documents(self) -> Mapping[str, str]:
        return dict(self._call(lambda: self._commands.hgetall(self._key("documents"))))

    def add_document(self, name: str, text: str) -> None:
        keys = [self._key("state"), self._key("documents")]
        if self._call(lambda: self._add_document(keys=keys, args=[name, text])) == -1:
            raise self._no_run()

    def commit(self, *, expected_version: int, state: str, entry: str, store_id: str = "") -> bool:
        keys = [self._key("state"), self._key("log")]
        arguments = [expected_version, state, entry, store_id]
        done = self._call(lambda: self._commit(keys=keys, args=arguments))
        if done == -1:
            raise self._no_run()
        return bool(done == 1)

    def entries(self, *, after_version: int, timeout_s: float) -> Sequence[Entry]:
        """Foreign entries in the log are skipped, by every reader alike: an entry without its
        field, with an id that no decision has, or that no commit made."""
        last_id = f"{after_version}-1" if after_version >= 0 else "0-0"
        end_s = time.monotonic() + timeout_s
        while found := self._read_stream(self._key("log"), last_id, end_s - time.monotonic()):
            last_id = found[-1][0]
            entries = [entry for at, body in found if (entry := entry_of(at, body)) is not None]
            # Read after the log, so that it covers everything that was committed there.
            ask = partial(self._commands.hget, self._key("state"), "version")
            newest = version_of(self._call(ask) or -1) if entries else -1
            if made := [entry for entry in entries if entry.version <= newest]:
                return made
        return []

    def store_id(self) -> str:
        return str(self._call(lambda: self._commands.hget(self._key("state"), "store_id")) or "")

    def offer(self, *, version: int, offer: str, lease_s: float) -> Offers:
        keys = [self._key("state"), self._key("offers")]
        here, best, text, seconds, micros = self._call(
            lambda: self._offer(keys=keys, args=[version, offer, lease_s])
        )
        now_s = _seconds(seconds, micros)
        return Offers(here=bool(here), version=version_of(best), best=text, now_s=now_s)

    def refill(self, *, state: str, entries: Sequence[Entry], documents: Mapping[str, str]) -> bool:
        keys = [self._key(name) for name in ("state", "log", "documents", "offers")]
        log = [part for entry in entries for part in (entry.version, entry.body)]
        texts = [text for pair in documents.items() for text in pair]
        version = entries[-1].version
        arguments = [uuid.uuid4().hex, version, state, len(entries), *log, *texts]
        return bool(self._call(lambda: self._refill(keys=keys, args=arguments)) == 1)

    def beat(self, node: NodeId, payload: str) -> None:
        self._call(lambda: self._beat(keys=[self._key("leases")], args=[node, payload]))

    def leases(self) -> tuple[float, Mapping[NodeId, Lease]]:
        seconds, micros, flat = self._call(lambda: self._leases(keys=[self._key("leases")]))
        pairs = zip(flat[::2], flat[1::2], strict=True)
        return _seconds(seconds, micros), {NodeId(node): lease_of(beat) for node, beat in pairs}

    def append(self, stream: str, record: str) -> str:
        key = self._key(f"s:{stream}")
        return str(self._call(lambda: self._commands.xadd(key, {"body": record})))

    def records(self, stream: str, *, after_id: str, timeout_s: float) -> Sequence[tuple[str, str]]:
        return self._read_stream(self._key(f"s:{stream}"), after_id, timeout_s)

    def close(self) -> None:
        self._closed = True
        self._disconnect_idle()

    def ping(self) -> None:
        """One round trip with login. Raises StoreRefused, with the remedy, when it fails."""
        try:
            self._commands.ping()
        except redis.RedisError as error:
            told: Exception = error
            if isinstance(error, redis.ConnectionError):
                said = redis.ConnectionError(_greeting(self._address))
                told = error if refusal_of(said, run=self._run) is None else said
            raise refused(self.shown_url, told, run=self._run) from error

    def try_out(self) -> None:
        """Make all kinds of writes of a run, below its own keys under names that no run uses, and
        remove them. Raises StoreRefused, with the remedy, if the store does not take them."""
        under, self._under = self._under, f"{self._under}check-{uuid.uuid4().hex[:8]}:"
        try:
            self._write_as_a_run_does()
        except StoreUnavailable as error:
            cause = error.__cause__
            assert isinstance(cause, Exception)
            raise refused(self.shown_url, cause, run=self._run) from cause
        finally:
            self._under = under

    def _write_as_a_run_does(self) -> None:
        node = NodeId("check")
        try:
            self.create(state="{}", entry="{}", documents={"check": ""})
            self._expire("state", "log", "documents")
            # Then a large write: a store with less free memory refuses the next command.
            large, documents = "-" * ROOM_BYTES, self._key("documents")
            self._call(lambda: self._commands.hset(documents, "check", large))
            self.add_document("another", "")
            self.commit(expected_version=0, state="{}", entry="{}")
            self.beat(node, "{}")
            self._expire("leases")
            for stream in _STREAMS:
                self.append(stream, "{}")
                self._expire(f"s:{stream}")
            self.read()
            self.leases()
            self.documents()
            self.entries(after_version=-1, timeout_s=0.0)
        finally:
            with contextlib.suppress(StoreUnavailable):  # then nothing was written
                self.remove()

    def _expire(self, *names: str) -> None:
        """Let the keys of a test expire, in case it is killed before it removes them. A write to a
        key keeps its expiry."""
        for name in names:
            key = self._key(name)
            # A user made by an older release may not do so: then the keys stay, which is harmless.
            with contextlib.suppress(StoreRefuses):
                self._call(partial(self._commands.expire, key, _TRIED_OUT_S))

    def look(self) -> StoreSeen:
        """What the server reports of itself. Raises StoreRefused as `ping` does."""
        try:
            said = self._commands.execute_command("HELLO")
            seconds, micros = self._commands.time()
        except redis.RedisError as error:
            raise refused(self.shown_url, error, run=self._run) from error
        flat = said if isinstance(said, dict) else dict(zip(said[::2], said[1::2], strict=True))
        return StoreSeen(
            software=str(flat.get("server", "")),
            version=str(flat.get("version", "")),
            now_s=_seconds(seconds, micros),
        )

    def remove(self) -> None:
        """Delete the run with everything that was ever written of it; safe to call again."""
        names = ("state", "log", "documents", "offers", "leases", *(f"s:{s}" for s in _STREAMS))
        keys = [self._key(name) for name in names]
        self._call(lambda: self._commands.delete(*keys))

    def _read_stream(self, key: str, last_id: str, timeout_s: float) -> list[tuple[str, str]]:
        deadline_s = time.monotonic() + max(0.0, timeout_s)
        while True:
            left_s = deadline_s - time.monotonic()
            # Block 0 would wait for ever, so the last read and a read without waiting do not block.
            block_ms = math.ceil(min(left_s, _BLOCK_S) * 1000) if left_s > 0 else None
            client = self._waiting if block_ms is not None else self._commands
            ask = partial(client.xread, {key: last_id}, count=_READ_COUNT, block=block_ms)
            answer = self._call(ask)
            if answer:
                return [(str(at), body_of(fields)) for at, fields in answer[0][1]]
            if block_ms is None:
                return []

    def _call(self, ask: Callable[[], T]) -> T:
        if self._closed:
            raise StoreUnavailable(f"the store at {self.shown_url} was closed here")
        try:
            return ask()
        except redis.RedisError as error:
            refusal = refusal_of(error, run=self._run)
            if refusal is None:
                raise StoreUnavailable(
                    f"the store at {self.shown_url} does not answer: {_one_line(error)}"
                ) from error
            raise StoreRefuses(_refusal_line(self.shown_url, refusal, error)) from error
        finally:
            if self._closed:
                self._disconnect_idle()

    def _disconnect_idle(self) -> None:
        # A connection on which another thread waits must not be closed here. That thread returns
        # within one piece of its wait, finds the store closed and disconnects.
        for client in (self._commands, self._waiting):
            client.connection_pool.disconnect(inuse_connections=False)

    def _script(self, name: str) -> Any:
        path = resources.files("bamboo.coord") / "lua" / f"{name}.lua"
        return self._commands.register_script(path.read_text(encoding="utf-8"))

    def _key(self, name: str) -> str:
        return f"bamboo:{self._run}:{self._under}{name}"

    def _no_run(self) -> InputError:
        return InputError(
            f"there is no run {self._run} in the store at {self.shown_url}; check the run's id"
        )


def refused(shown_url: str, error: Exception, *, run: RunId) -> StoreRefused:
    """The one line for a store that cannot be used at the start, with its remedy."""
    refusal = refusal_of(error, run=run)
    if refusal is not None:
        kind = StoreNotReached if refusal.passes else StoreRefused
        return kind(_refusal_line(shown_url, refusal, error))
    said, kind = _one_line(error), StoreRefused
    if trouble := next((t for t in _TLS_TROUBLES if t[0] in said), None):
        _, what, remedy = trouble
    elif isinstance(error, redis.ConnectionError | redis.TimeoutError):
        what, kind = "cannot be reached", StoreNotReached
        remedy = "start it, or correct its URL (BAMBOO_REDIS_URL)"
        if shown_url.startswith("redis://") and ("closed" in said or "reset" in said):
            remedy += "; where it speaks TLS, that is rediss://"
    else:
        what = "cannot be used"
        remedy = "mend the server, or name another one (BAMBOO_REDIS_URL)"
    return kind(f"the store at {shown_url} {what}: {said}; {remedy}")


def _refusal_line(shown_url: str, refusal: Refusal, error: Exception) -> str:
    return f"the store at {shown_url} {refusal.what}: {_one_line(error)}; {refusal.remedy}"


_TLS_TROUBLES = (
    # The library says in all these cases that the certificate is not verified; the first match
    # counts.
    (
        "certificate is not valid for",
        "shows a certificate of another host",
        "use the host's name as the certificate has it, or give it one for this name",
    ),
    ("certificate has expired", "shows a certificate that has expired", "renew it on the server"),
    (
        "certificate is not yet valid",
        "shows a certificate that is not valid yet",
        "set the clocks of this machine and of the server",
    ),
    (
        "CERTIFICATE_VERIFY_FAILED",
        "shows a certificate that nobody trusted here vouches for",
        f"name the file of its authority in {CA_VARIABLE}",
    ),
    (
        "WRONG_VERSION_NUMBER",
        "does not speak TLS on this port",
        "name its TLS port, or turn TLS on in the server",
    ),
    (
        "CERTIFICATE_REQUIRED",
        "wants a certificate of its clients",
        "add ssl_certfile= and ssl_keyfile= to the URL, or set `tls-auth-clients no` in the server",
    ),
)
"""The error of the client library, its meaning, and the remedy."""


def connection(address: Address, *, connect_s: float, answer_s: float) -> Any:
    """A client of the library, which connects on its first call and never repeats a call."""
    make: Any = redis.Redis
    return make(
        **address.options,
        decode_responses=True,
        encoding_errors="backslashreplace",  # for entries of other writers
        protocol=2,
        socket_connect_timeout=connect_s,
        socket_timeout=answer_s,
        # The driver retries, because only it knows what an attempt may have done.
        retry=Retry(NoBackoff(), 0),
    )


def _greeting(address: Address) -> str:
    """What a server says to a new connection before it closes it, which the library does not read:
    that it has too many clients, or accepts no other hosts. "" if there is no text."""
    options = address.options
    path = options.get("unix_socket_path")
    try:
        with socket.socket(socket.AF_UNIX if path else socket.AF_INET) as line:
            line.settimeout(_GREETING_S)
            line.connect(path or (options["host"], options["port"]))
            said = line.recv(512).decode(errors="replace")
    except OSError:
        return ""
    return said.strip().removeprefix("-ERR ")


def _seconds(seconds: str, micros: str) -> float:
    return int(seconds) + int(micros) / 1_000_000


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__
