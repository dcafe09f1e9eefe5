"""
The world around a gateway that gets killed: carriers that wait for it, a store that can hold its breath, its databases.

The simulators are those of the other tests; here they only learn to stop at a chosen moment.
"""

import asyncio
import contextlib
import sqlite3
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from tests.fakes.carrier import Exchange
from tests.fakes.llm import FakeLlm
from tests.fakes.remem import FakeRemem, Fault, Request, Response
from tests.fakes.telnyx import FakeTelnyx
from tests.fakes.twilio import FakeTwilio


class LoginThrottle:
    """What both carriers learn: to hold media back, and to ask again when the gateway is there."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.media = asyncio.Event()
        self.media.set()
        self.gateway_up = asyncio.Event()
        self.asks_again = True
        """Whether what to do with a call is asked when the gateway is back; else at once, and in vain."""
        self.dialled_at = 0.0
        """When the newest media socket was asked for."""

    async def open_socket(self, url: str, headers: dict[str, str]) -> Any:
        await self.media.wait()
        self.dialled_at = time.monotonic()
        return await super().open_socket(url, headers)  # type: ignore[misc]

    async def request(self, entry: Exchange, **how: Any) -> Exchange:
        if self.asks_again and entry.kind == "action":
            await self.gateway_up.wait()
        return await super().request(entry, **how)  # type: ignore[misc]


class PatientTwilio(LoginThrottle, FakeTwilio):
    """Twilio. A call whose gateway is gone ends, or waits for the answer to `action`."""


class PatientTelnyx(LoginThrottle, FakeTelnyx):
    """Telnyx. The call lives on without its stream."""


CARRIERS = {"twilio": PatientTwilio, "telnyx": PatientTelnyx}


class HoldingRemem(FakeRemem):
    """A store that stops inside a write: before it is carried out, or after, with the answer unsaid."""

    hold: Literal["", "before", "after"] = ""

    def __init__(self, **dialect: Any) -> None:
        super().__init__(**dialect)
        self.spoils: deque[Fault] = deque()
        """What goes wrong with the next writes."""
        self.holding = asyncio.Event()
        self.release = asyncio.Event()

    async def _respond(self, request: Request) -> Response | None:
        writes = request.method == "PUT" or request.path.startswith("/v1/documents") and request.method == "POST"
        if writes and self.hold == "before":
            await self._stop_here()
        if writes and self.spoils:
            self.faults.appendleft(self.spoils.popleft())
        response = await super()._respond(request)
        if writes and self.hold == "after":
            await self._stop_here()
        return response

    async def _stop_here(self) -> None:
        self.holding.set()
        await self.release.wait()

    def let_go(self) -> None:
        """Drop what is held: its client is dead."""
        self.hold = ""
        for task in list(self._connections) if self.holding.is_set() and not self.release.is_set() else ():
            task.cancel()
        self.holding, self.release = asyncio.Event(), asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # The stream server of 3.11 can't bear a cancelled task.
        with contextlib.suppress(asyncio.CancelledError):
            await super()._serve(reader, writer)


class HoldingLlm(FakeLlm):
    """A language model that answers when it may."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def _answer(self, request: Any, writer: asyncio.StreamWriter) -> None:
        await self.may_answer.wait()
        await super()._answer(request, writer)


@contextlib.contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Nobody else writes to this database meanwhile: who wants to waits, and can be killed while waiting."""
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def rows(path: Path, query: str) -> list[Any]:
    """What a database holds right now."""
    if not path.exists():
        return []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    except sqlite3.OperationalError:
        return []  # it is just being made
    finally:
        connection.close()
