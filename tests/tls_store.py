"""Debian's redis-server for tests: TLS with a certificate made on the spot, and an ACL file in
which each run has a user of its own and nobody else may do anything."""

import ipaddress
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from bamboo.coord.acl import user_line, user_name, user_rules
from bamboo.ids import RunId
from testbed.waiting import wait_until

SERVER = "redis-server"
MUST_BE_THERE = "BAMBOO_REDIS_E2E"
"""Set by `make redis-e2e`: what is missing is a failure then."""
_KEY = ec.generate_private_key(ec.SECP256R1())


def tls_server_or_skip() -> str:
    """The path of a redis-server that speaks TLS. Skips the test where there is none."""
    path = shutil.which(SERVER)
    why = "" if path else f"{SERVER} is not on the path (`make redis-e2e` installs it)"
    if path is not None:
        # It names its arguments when it is given one that it was built without.
        asked = [path, "--port", "0", "--tls-port", "0", "--tls-protocols", "none"]
        said = subprocess.run(asked, capture_output=True, text=True, timeout=20, check=False)
        if "Bad directive" in said.stdout + said.stderr:
            why = f"{path} was built without TLS"
    if path is None or why:
        if os.environ.get(MUST_BE_THERE):
            pytest.fail(why)
        pytest.skip(why)
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsStore:
    """A running server, of which the caller is the parent; it listens on loopback only."""

    process: "subprocess.Popen[bytes]" = field(repr=False)
    port: int
    folder: Path
    admin_password: str

    @property
    def authority(self) -> Path:
        return self.folder / "ca.pem"

    def url(self, run: RunId, password: str, *, host: str = "localhost") -> str:
        """What a run is given; the authority comes from the environment."""
        return f"rediss://{user_name(run)}:{password}@{host}:{self.port}/0"

    def with_authority(self, url: str) -> str:
        return f"{url}?ssl_ca_certs={self.authority}"

    def admin(self) -> "redis.Redis[str]":
        """A client that may do everything; the caller closes it."""
        return redis.Redis(
            port=self.port,
            username="admin",
            password=self.admin_password,
            ssl=True,
            ssl_ca_certs=str(self.authority),
            decode_responses=True,
        )

    @property
    def admin_url(self) -> str:
        return f"rediss://admin:{self.admin_password}@localhost:{self.port}/0"

    def users(self) -> list[str]:
        with self.admin() as admin:
            return [str(name) for name in admin.execute_command("ACL", "USERS")]

    def add_user(self, run: RunId) -> str:
        """Make the user of a run, by the rules of `bamboo.coord.acl`; its password."""
        password = secrets.token_hex(32)
        with self.admin() as admin:
            rules = ("reset", "on", f">{password}", *user_rules(run))
            admin.execute_command("ACL", "SETUSER", user_name(run), *rules)
        return password

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(timeout=10.0)


def start_tls_store(folder: Path, *, users: Iterable[tuple[RunId, str]] = ()) -> TlsStore:
    """Start a server whose ACL file has these runs with their passwords. Skips the test where
    there is no server that could."""
    path = tls_server_or_skip()
    folder.mkdir(parents=True, exist_ok=True)
    make_certificates(folder)
    admin_password = secrets.token_hex(32)
    lines = [f"user admin on >{admin_password} ~* &* +@all", "user default off"]
    lines += [user_line(run, password=password) for run, password in users]
    acl = folder / "users.acl"
    acl.write_text("".join(f"{line}\n" for line in lines))
    acl.chmod(0o600)
    store = _started(path, folder, admin_password)
    try:
        wait_until(lambda: _answers(store), what="an answer over TLS", timeout_s=20.0)
    except BaseException:
        store.stop()
        raise
    return store


def _started(path: str, folder: Path, admin_password: str) -> TlsStore:
    # The port is drawn here: the server takes one that is given, and 0 means that there is none.
    port = free_port()
    settings = {
        "port": "0",
        "bind": "127.0.0.1",
        "tls-port": str(port),
        "tls-cert-file": str(folder / "server.pem"),
        "tls-key-file": str(folder / "key.pem"),
        "tls-ca-cert-file": str(folder / "ca.pem"),
        "tls-auth-clients": "no",
        "aclfile": str(folder / "users.acl"),
        "dir": str(folder),
        "appendonly": "yes",
        "save": '""',
    }
    text = "".join(f"{key} {value}\n" for key, value in settings.items())
    with (folder / "redis.log").open("ab") as log:
        process = subprocess.Popen([path, "-"], stdin=subprocess.PIPE, stdout=log, stderr=log)
    assert process.stdin is not None
    process.stdin.write(text.encode())
    process.stdin.close()
    return TlsStore(process=process, port=port, folder=folder, admin_password=admin_password)


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _answers(store: TlsStore) -> bool:
    log = (store.folder / "redis.log").read_text(errors="replace")
    assert store.process.poll() is None, f"the server ended:\n{log[-2000:]}"
    try:
        with store.admin() as admin:
            return bool(admin.ping())
    except redis.ConnectionError:
        return False


def make_certificates(folder: Path, *, host: str = "localhost") -> None:
    """`ca.pem`, and `server.pem` with `key.pem` for `host` and 127.0.0.1, good for an hour."""
    authority = _certificate("bamboo test authority", issuer="bamboo test authority", host="")
    server = _certificate("a store", issuer="bamboo test authority", host=host)
    for name, certificate in (("ca.pem", authority), ("server.pem", server)):
        (folder / name).write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key = folder / "key.pem"
    key.touch(mode=0o600)
    key.write_bytes(
        _KEY.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )


def _certificate(name: str, *, issuer: str, host: str) -> x509.Certificate:
    """For `host`, or of an authority where that is ""; one key signs everything here."""
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(_KEY.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=not host, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(_KEY.public_key()), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(_KEY.public_key()), critical=False
        )
    )
    if host:
        names = [x509.DNSName(host)]
        if host == "localhost":
            names.append(x509.IPAddress(ipaddress.ip_address("127.0.0.1")))  # type: ignore[arg-type]
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    else:
        usage = x509.KeyUsage(
            key_cert_sign=True,
            crl_sign=True,
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            encipher_only=False,
            decipher_only=False,
        )
        builder = builder.add_extension(usage, critical=True)
    return builder.sign(_KEY, hashes.SHA256())
