"""Ports for servers that are started later or restarted."""

import contextlib
import random
import socket


def free_port() -> int:
    """A free port below 32768, where the system allocates ports for outgoing connections."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
