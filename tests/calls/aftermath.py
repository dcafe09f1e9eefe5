"""What the tests of a call's ending share: a call that is over, a model with moods, and the rooms around them."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx

from gateway.agents import Agent
from gateway.errors import LlmError
from gateway.finalization.archive import Archive
from gateway.finalization.job import FinalizationJob, NoJobQueue
from gateway.finalization.job_table import JobTable
from gateway.finalization.steps import CallMemory, FinalizationSteps
from gateway.finalization.summary.call_summary import CallSummary, SummaryRequest
from gateway.finalization.summary.summarizer import Summarizer
from gateway.finalization.worker import FinalizationWorker
from gateway.history.live_events import EventPublisher
from gateway.history.stores import open_local_store
from gateway.memory.remem_client import RememClient
from gateway.memory.stores.documents import Document
from gateway.memory.stores.sqlite import SqliteStore
from gateway.session import EndReason, Speaker, Turn, VoiceSession
from gateway.settings import Secret
from tests.fakes.remem import FakeRemem
from tests.stage import until

START = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
CALLER = "+12025550143"
WORDS = "I need a new chain for my bike before Friday."
SUMMARY = CallSummary("Ana", ("A chain",), ("Thursday",), (), (), "Ana waits for her chain.", "test/model")


def a_session(**fields: Any) -> VoiceSession:
    given: dict[str, Any] = {
        "agent": "maya",
        "caller": CALLER,
        "carrier": "twilio",
        "started_at": START,
        "ended_at": START + timedelta(seconds=262),
        "end_reason": EndReason.CALLER_HUNG_UP,
        "turns": [Turn(Speaker.AGENT, "Hello.", START), Turn(Speaker.CALLER, WORDS, START)],
    }
    return VoiceSession(**(given | fields))


async def nothing(session_id: str) -> None: ...


async def never_erased(session: VoiceSession) -> bool:
    return False


@dataclass
class MoodyModel:
    """A summary provider that fails for as long as it has a failure."""

    failure: LlmError | None = None
    asked: int = 0
    name: str = "test"

    async def prepare(self) -> None: ...

    async def close(self) -> None: ...

    async def summarise(self, request: SummaryRequest) -> CallSummary:
        self.asked += 1
        if self.failure:
            raise self.failure
        return SUMMARY

    def recovers(self) -> None:
        self.failure = None


@dataclass
class Pauses:
    """An injected sleep that does not wait: it notes how long it should, and lets the world change meanwhile."""

    lengths: list[float] = field(default_factory=list)
    events: deque[Callable[[], object]] = field(default_factory=deque)

    async def __call__(self, seconds: float) -> None:
        self.lengths.append(seconds)
        if self.events:
            self.events.popleft()()
        await asyncio.sleep(0)


@dataclass
class Aftermath:
    """The parts of a finalization job, all real but the other end of the wire."""

    steps: FinalizationSteps
    store: SqliteStore
    jobs: JobTable
    folder: Path
    http: httpx.AsyncClient
    pauses: Pauses = field(default_factory=Pauses)

    def finalizer(self, **options: Any) -> FinalizationWorker:
        given = {
            "queue": NoJobQueue(),
            "events": EventPublisher(),
            "clear_away": nothing,
            "sleep": self.pauses,
        } | options
        return FinalizationWorker(self.steps, self.jobs, **given)

    def sends_to(self, remem: FakeRemem, key: str = "") -> None:
        self.steps = replace(self.steps, remem=RememClient(remem.url, Secret(key or remem.api_key), self.http))

    def asks(self, model: MoodyModel) -> None:
        self.steps = replace(self.steps, summarizer=Summarizer([model], "Summarise.", tries_each=1))

    async def finishes(self, session: VoiceSession) -> None:
        """Hand the call to a finalizer and wait until all is done."""
        finalizer = self.finalizer()
        finalizer.submit(session)
        await until(lambda: not finalizer.unfinished)

    async def resumes(self) -> None:
        """What the next process does: take up what is open, and see it through."""
        finalizer = self.finalizer()
        await finalizer.resume()
        await until(lambda: not finalizer.unfinished)

    async def documents(self) -> list[Document]:
        return await self.store.newest(tags=("voice-session",), limit=10)

    async def unfinished_jobs(self) -> list[FinalizationJob]:
        return await self.jobs.unfinished()

    def archives(self) -> list[str]:
        return [path.read_text() for path in sorted(self.archive_dir.glob("*.txt"))]

    @property
    def archive_dir(self) -> Path:
        return self.folder / "archive"


@asynccontextmanager
async def aftermath_in(folder: Path) -> AsyncIterator[Aftermath]:
    async with AsyncExitStack() as stack:
        store = await open_local_store(folder)
        stack.push_async_callback(store.close)
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        table = JobTable(store)
        steps = FinalizationSteps(
            memory=CallMemory(store),
            jobs=table,
            remem=None,
            summarizer=Summarizer([], ""),
            archive=Archive(folder / "archive", retention_days=7),
            find_agent={"maya": Agent("maya", "", timezone="UTC")}.get,
            is_erased=never_erased,
        )
        yield Aftermath(steps, store, table, folder, http)
