"""
What the links need of a WebSocket, and nothing else, so that the implementation behind it can be exchanged.

Callbacks, not coroutines: a frame goes from one socket to the other inside one callback, with no queue and no task
switch between. `send` never waits; what the peer does not take is buffered, and `buffered_bytes` tells how much.
"""

import functools
import ssl
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from gateway.errors import EngineRefused, EngineUnavailable

NORMAL: Final = 1000
POLICY_VIOLATION: Final = 1008
TOO_BIG: Final = 1009
NO_STATUS: Final = 1005
"""Never sent: the peer closed without a code."""
PING_SECONDS: Final = 10.0
"""A client socket pings a peer that was silent so long, and gives it as long to answer."""
ABNORMAL: Final = 1006
"""Never sent: what `on_closed` reports when the connection broke without a close frame."""


def handshake_refused(status: int) -> EngineRefused | EngineUnavailable:
    """The error for an upgrade answered with this status: for good, or for now."""
    kind = EngineRefused if status in (401, 402, 403) else EngineUnavailable
    return kind(f"the engine answered the handshake with status {status}")


@functools.cache
def tls_context() -> ssl.SSLContext:
    """For every client socket the same: reading the machine's certificates takes longer than a frame of audio."""
    return ssl.create_default_context()


class Socket(Protocol):
    """An open WebSocket."""

    def send_text(self, data: bytes) -> None: ...
    def send_binary(self, data: bytes) -> None: ...
    def close(self, code: int = NORMAL) -> None:
        """Say goodbye and disconnect. Safe to repeat; `on_closed` follows once."""

    @property
    def buffered_bytes(self) -> int: ...


class SocketOwner(Protocol):
    """Who hears what arrives. Every method is called on the event loop and must return at once."""

    def on_open(self, socket: Socket) -> None: ...
    def on_text(self, data: bytes) -> None: ...
    def on_binary(self, data: bytes) -> None: ...
    def on_closed(self, code: int) -> None:
        """The connection is gone, whoever ended it. Called once, last."""


Door = Callable[[str, Mapping[str, str]], SocketOwner | int]
"""Asked for each upgrade, with path (query included) and headers: who owns the socket, or the status of a refusal."""


class Connector(Protocol):
    """Opens client sockets. Raises EngineRefused on 401, 402, 403; EngineUnavailable on anything else."""

    async def __call__(
        self, url: str, headers: Mapping[str, str], owner: SocketOwner, *, max_bytes: int, timeout: float
    ) -> Socket: ...
