"""What proves to a worker that who connects is of its run."""

from collections.abc import Mapping
from dataclasses import dataclass

import zmq


@dataclass(frozen=True, slots=True, kw_only=True)
class RunKeys:
    """The run's CURVE keys (Z85 text): what every worker listens with and connects with."""

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
