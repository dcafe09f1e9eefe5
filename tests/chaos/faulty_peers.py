"""Peers that can be paused at a chosen moment: carriers, remote store, language model, receiver. Database locks."""

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
from tests.fakes.webhook_receiver import WebhookReceiver


class ControllableCarrier:
    """Holds media back, and delays the `action` request until a gateway runs again."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.media = asyncio.Event()
        self.media.set()
        self.gateway_up = asyncio.Event()
        self.asks_again = True
        """Whether `action` is requested after the restart; otherwise at once, which fails."""
        self.dialled_at = 0.0
        """When the newest media socket was opened."""

    async def open_socket(self, url: str, headers: dict[str, str]) -> Any:
        await self.media.wait()
        self.dialled_at = time.monotonic()
        return await super().open_socket(url, headers)  # type: ignore[misc]

    async def request(self, entry: Exchange, **how: Any) -> Exchange:
        if self.asks_again and entry.kind == "action":
            await self.gateway_up.wait()
        return await super().request(entry, **how)  # type: ignore[misc]


class ControllableTwilio(ControllableCarrier, FakeTwilio):
    """Twilio: without a gateway the call ends or waits for the answer to `action`."""


class ControllableTelnyx(ControllableCarrier, FakeTelnyx):
    """Telnyx: the call continues without its stream."""


CARRIERS = {"twilio": ControllableTwilio, "telnyx": ControllableTelnyx}


class PausableRemem(FakeRemem):
    """Pauses inside a write, before it is executed or before it is answered."""

    hold: Literal["", "before", "after"] = ""

    def __init__(self, **dialect: Any) -> None:
        super().__init__(**dialect)
        self.next_faults: deque[Fault] = deque()
        """Faults of the next writes."""
        self.holding = asyncio.Event()
        self.release = asyncio.Event()

    async def _respond(self, request: Request) -> Response | None:
        writes = request.method == "PUT" or request.path.startswith("/v1/documents") and request.method == "POST"
        if writes and self.hold == "before":
            await self._pause()
        if writes and self.next_faults:
            self.faults.appendleft(self.next_faults.popleft())
        response = await super()._respond(request)
        if writes and self.hold == "after":
            await self._pause()
        return response

    async def _pause(self) -> None:
        self.holding.set()
        await self.release.wait()

    def let_go(self) -> None:
        """Drop paused requests: their client is dead."""
        self.hold = ""
        for task in list(self._connections) if self.holding.is_set() and not self.release.is_set() else ():
            task.cancel()
        self.holding, self.release = asyncio.Event(), asyncio.Event()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # asyncio's stream server in Python 3.11 fails on a cancelled task.
        with contextlib.suppress(asyncio.CancelledError):
            await super()._serve(reader, writer)


class PausableLlm(FakeLlm):
    """Answers while `may_answer` is set."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def _answer(self, request: Any, writer: asyncio.StreamWriter) -> None:
        await self.may_answer.wait()
        await super()._answer(request, writer)


class PausableReceiver(WebhookReceiver):
    """Pauses inside the webhook of an ended call, before it is accepted or before it is answered."""

    hold: Literal["", "before", "after"] = ""

    def __init__(self) -> None:
        super().__init__()
        self.holding = asyncio.Event()
        self.release = asyncio.Event()

    def received(self, caller: str) -> int:
        """How many messages about ended calls of this caller were accepted; a repeated one counts once."""
        return sum(message["caller"] == caller for message in self.messages())

    async def answer(self, message_id: str, message: dict[str, Any]) -> int:
        if self.hold == "before":
            await self._pause()
        status = await super().answer(message_id, message)
        if self.hold == "after":
            await self._pause()
        return status

    async def _pause(self) -> None:
        self.holding.set()
        await self.release.wait()

    def let_go(self) -> None:
        """Answer paused requests: their client is dead."""
        self.hold = ""
        self.release.set()
        self.holding, self.release = asyncio.Event(), asyncio.Event()


@contextlib.contextmanager
def write_lock(path: Path) -> Iterator[None]:
    """Lock a database: writers wait and can be killed while waiting."""
    connection = sqlite3.connect(path, timeout=10, isolation_level=None)
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")
    finally:
        connection.close()


def rows(path: Path, query: str) -> list[Any]:
    """Query a database that may not exist yet."""
    if not path.exists():
        return []
    connection = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    try:
        return connection.execute(query).fetchall()
    except sqlite3.OperationalError:
        return []  # being created
    finally:
        connection.close()
