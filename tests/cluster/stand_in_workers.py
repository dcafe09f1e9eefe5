"""Workers for tests of the supervisor. They write to a file what happens to them."""

import os
import signal
import socket
import sys
import time


def note(path: str, what: str) -> None:
    with open(path, "ab", buffering=0) as notes:
        notes.write(f"{os.getpid()} {what}\n".encode())


def drain(path: str, link: socket.socket) -> None:
    """Drain on the first SIGTERM, as long as the test likes. End on the second, on SIGINT, or without a supervisor."""

    def on_sigterm(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        note(path, "drains")

    def on_sigint(*_: object) -> None:
        note(path, "interrupted")
        sys.exit(130)

    signal.signal(signal.SIGTERM, on_sigterm)
    signal.signal(signal.SIGINT, on_sigint)
    note(path, "starts")
    link.send(b"\n")
    link.recv(1)
    note(path, "orphaned")


def fail(path: str, link: socket.socket) -> None:
    note(path, "fails")
    sys.exit(7)


def start_slowly(path: str, link: socket.socket) -> None:
    note(path, "starts")
    time.sleep(60)


def lose_sigint(path: str, link: socket.socket) -> None:
    signal.signal(signal.SIGINT, lambda *_: None)
    start_slowly(path, link)
