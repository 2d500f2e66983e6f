"""How a worker knows that a connecting process belongs to its run: by CURVE, which also encrypts,
or by a password in the clear."""

from collections.abc import Mapping
from dataclasses import dataclass

import zmq
from zmq.auth.thread import ThreadAuthenticator

_DOMAIN = b"bamboo"
_USER = "worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    """The run's CURVE keys (Z85 text), with which every worker listens and connects."""

    server_public: bytes
    server_secret: bytes
    client_public: bytes
    client_secret: bytes

    @classmethod
    def generate(cls) -> "RunKeys":
        server_public, server_secret = zmq.curve_keypair()
        client_public, client_secret = zmq.curve_keypair()
        return cls(
            server_public=server_public,
            server_secret=server_secret,
            client_public=client_public,
            client_secret=client_secret,
        )

    def to_dict(self) -> dict[str, str]:
        return {name: getattr(self, name).decode() for name in self.__dataclass_fields__}

    @classmethod
    def from_dict(cls, raw: Mapping[str, str]) -> "RunKeys":
        return cls(**{name: raw[name].encode() for name in cls.__dataclass_fields__})


class _CurveServer:
    """Lets the holders of the run's client key connect to a worker."""

    def __init__(self, client_public: bytes) -> None:
        self._allowed = client_public

    def callback(self, domain: str, key: bytes) -> bool:
        """Called by the authenticator thread at each handshake."""
        del domain
        return key == self._allowed


@dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """How a socket asks for the run's keys and shows them, with or without encryption
    (`encrypt`)."""

    keys: RunKeys
    encrypt: bool

    def admit(self, auth: ThreadAuthenticator) -> None:
        """Tell the authenticator which clients it admits."""
        domain = _DOMAIN.decode()
        if self.encrypt:
            server = _CurveServer(self.keys.client_public)
            auth.configure_curve_callback(domain, credentials_provider=server)
        else:
            auth.configure_plain(domain, {_USER: self.keys.client_secret.decode()})

    def ask_at(self, listener: zmq.Socket[bytes]) -> None:
        """Let a listening socket ask for the run's keys."""
        listener.setsockopt(zmq.ZAP_DOMAIN, _DOMAIN)
        if self.encrypt:
            listener.curve_server = True
            listener.curve_publickey = self.keys.server_public
            listener.curve_secretkey = self.keys.server_secret
        else:
            listener.plain_server = True

    def show_from(self, peer: zmq.Socket[bytes]) -> None:
        """Let a connecting socket show the run's keys."""
        if self.encrypt:
            peer.curve_serverkey = self.keys.server_public
            peer.curve_publickey = self.keys.client_public
            peer.curve_secretkey = self.keys.client_secret
        else:
            peer.plain_username = _USER.encode()
            peer.plain_password = self.keys.client_secret
