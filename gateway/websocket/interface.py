"""
The WebSocket interface of media streams and engine connections, independent of the library behind it.

Callbacks instead of coroutines: a frame goes from one socket to the other inside one callback, without a queue or task
switch. `send` never blocks; `buffered_bytes` is the amount that the peer has not read yet.
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
"""Never on the wire: the peer closed without a code."""
PING_SECONDS: Final = 10.0
"""A client socket sends a ping after this much silence and waits as long for the pong."""
ABNORMAL: Final = 1006
"""Never on the wire: `on_closed` reports it when the connection broke without a close frame."""


def handshake_refused(status: int) -> EngineRefused | EngineUnavailable:
    """The error for a handshake answered with this status: permanent or temporary."""
    kind = EngineRefused if status in (401, 402, 403) else EngineUnavailable
    return kind(f"the engine answered the handshake with status {status}")


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Shared by all client sockets: loading the system's certificates takes longer than a frame of audio."""
    return ssl.create_default_context()


class Socket(Protocol):
    """An open WebSocket."""

    def send_text(self, data: bytes) -> None: ...
    def send_binary(self, data: bytes) -> None: ...
    def close(self, code: int = NORMAL) -> None:
        """Send a close frame and disconnect. Safe to repeat; `on_closed` follows once."""

    @property
    def buffered_bytes(self) -> int: ...


class SocketOwner(Protocol):
    """Receives the messages of one socket. Methods are called on the event loop and must return at once."""

    def on_open(self, socket: Socket) -> None: ...
    def on_text(self, data: bytes) -> None: ...
    def on_binary(self, data: bytes) -> None: ...
    def on_closed(self, code: int) -> None:
        """The connection has ended, from either side. Called once, last."""


UpgradeHandler = Callable[[str, Mapping[str, str]], SocketOwner | int]
"""Called for each upgrade with path and query, and headers. Returns the socket's owner or an HTTP status to refuse."""


class Connector(Protocol):
    """Opens client sockets. Raises EngineRefused on 401, 402, 403; EngineUnavailable on anything else."""

    async def __call__(
        self, url: str, headers: Mapping[str, str], owner: SocketOwner, *, max_bytes: int, timeout: float
    ) -> Socket: ...
