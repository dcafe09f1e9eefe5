"""Ports for servers that are started later, or again."""

import contextlib
import random
import socket


def free_port() -> int:
    """A port that stays free while nobody listens: the system gives those from 32768 on to any connection."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
