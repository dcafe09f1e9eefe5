"""A real gateway on a loopback port between a fake carrier and a fake engine, for tests of whole calls."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx

from gateway import settings
from gateway.app import Timeouts, create_app
from gateway.audio import SILENCE_FRAME
from gateway.calls.consent import ConsentTimeouts
from gateway.engines.registry import ENGINES, MakeEngine
from gateway.simulate.gateway_under_test import serve_on_loopback
from gateway.websocket import picows
from gateway.websocket.interface import Connector
from gateway.websocket.port_mux import PortMux
from tests.fakes import deepgram
from tests.fakes.deepgram import Conversation, FakeDeepgram
from tests.fakes.telnyx import FakeTelnyx
from tests.fakes.twilio import FakeTwilio

CALLER = "+12025550143"
CALLED = "+12025550100"
PUBLIC_URL = "https://voice.example.com"
ADMIN = "admin-token-of-the-tests"
SOUND = bytes(range(1, 161))
SUMMARY_KEYS = {"ANTHROPIC_API_KEY", "XAI_API_KEY"}
PATIENCE = 60.0
"""Limit for anything that could hang. Long, so that a busy machine does not fail a test."""
LAST_WORDS = 0.05
"""How long a gateway waits after a call for text of its last words. The engine is fake and in the same process."""
GREETING_SOUND = deepgram.speech("Hello, this is Maya.") + deepgram.speech("How can I help you?")


def patient(timeouts: Timeouts = Timeouts()) -> Timeouts:
    speech = replace(timeouts.live_calls.speech, reply_fetch=PATIENCE)
    consent = ConsentTimeouts(answer=PATIENCE, longest=PATIENCE)
    live_calls = replace(timeouts.live_calls, speech=speech, last_words=LAST_WORDS, consent=consent)
    tools = replace(timeouts.tools, load=PATIENCE)
    engine = replace(timeouts.engine, memory=PATIENCE)
    hosted = replace(timeouts.hosted_calls, memory=PATIENCE, store=PATIENCE, token=PATIENCE, stored=PATIENCE)
    return replace(
        timeouts, live_calls=live_calls, tools=tools, engine=engine, turn_recall=PATIENCE, hosted_calls=hosted
    )


@contextlib.asynccontextmanager
async def running_gateway(
    environ: dict[str, str],
    folder: Path,
    *,
    hurries: bool = False,
    connect: Connector = picows.connect,
    timeouts: Timeouts = Timeouts(),
    engines: Mapping[str, MakeEngine] = ENGINES,
) -> AsyncIterator[str]:
    """
    The gateway with these settings, started and stopped; yields its address.

    It waits for memory, tools and replies as long as they take, or it would depend on the machine whether memory is in
    the first prompt or comes late. `hurries`: it waits as in production, for tests that hold something back.
    """
    if not hurries:
        timeouts = patient(timeouts)
    app = create_app(settings.load(environ, folder), connect=connect, timeouts=timeouts, engines=engines)
    async with serve_on_loopback(app, http=PortMux, ws="none", lifespan="on") as url:
        yield url


def patient_client(url: str = "", **options: Any) -> httpx.AsyncClient:
    """An HTTP client without httpx's limit of five seconds. Loads no certificates, which would take longest."""
    return httpx.AsyncClient(base_url=url, trust_env=False, verify=False, timeout=PATIENCE, **options)


async def in_time(awaitable: Awaitable[Any]) -> Any:
    """
    Await something that must not hang.

    All limits count the waiting here, not the clock: it jumps when the machine is suspended.
    """
    waiting = asyncio.ensure_future(awaitable)
    try:
        for _ in range(int(PATIENCE)):
            if (await asyncio.wait([waiting], timeout=1))[0]:
                return await waiting
        raise TimeoutError
    finally:
        waiting.cancel()


async def until(condition: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """Poll until the condition is true. Returns its value."""
    waited = 0.0
    while not (value := condition()):
        if waited > timeout:
            raise TimeoutError
        await asyncio.sleep(0.005)
        waited += 0.005
    return value


async def until_it(condition: Callable[[], Awaitable[Any]], timeout: float = PATIENCE) -> Any:
    """The same for an asynchronous condition, mostly a request: the longer it takes, the less often it asks."""
    pause, waited = 0.01, 0.0
    while not (value := await in_time(condition())):
        if waited > timeout:
            raise TimeoutError
        await asyncio.sleep(pause)
        waited += pause
        pause = min(pause * 1.25, 0.1)
    return value


@dataclass
class Stage:
    """One gateway, one carrier, one engine."""

    url: str
    carrier: Any
    engine: Any
    """FakeDeepgram, or FakeRealtime."""
    archive_dir: Path
    http: httpx.AsyncClient

    async def dial(self, caller: str = CALLER, called: str = CALLED, **fields: Any) -> tuple[Any, Conversation]:
        """Place a call. Returns the phone's and the engine's side."""
        call = await self.carrier.dial(caller, called, **fields)
        conversation = await self.engine.next_conversation()
        await conversation.configured()
        return call, conversation

    async def played(self, call: Any, conversation: Conversation) -> None:
        """Wait until the phone has played everything and the gateway has processed its marks."""
        await call.until(lambda: _marks(call) and _marks(call) <= set(call.marks_echoed) and _ends_with_mark(call))
        heard = len(conversation.heard)
        await call.speak(SOUND)
        await conversation.hears(heard + len(SOUND))

    async def spoken(self, call: Any, conversation: Conversation) -> None:
        """The caller makes a sound, then is silent for long enough that it has an end."""
        heard = len(conversation.heard)
        await call.speak(SOUND + SILENCE_FRAME)
        await conversation.hears(heard + len(SOUND) + len(SILENCE_FRAME))
        await asyncio.sleep(0.1)

    async def answer(self, call: Any, conversation: Conversation, text: str) -> None:
        """Let the agent speak, and wait until the caller has heard it."""
        marks = len(call.marks_echoed)
        await conversation.agent_says(text)
        await call.until(lambda: len(call.marks_echoed) > marks)
        await self.played(call, conversation)

    async def documents(self, caller: str = CALLER, agent: str = "maya") -> list[dict[str, Any]]:
        tags = ["voice-session", f"caller:{caller}", f"agent:{agent}"]
        answer = await self.http.post("/v1/query", json={"text": "voice call summary", "tags": tags, "limit": 100})
        ids = [result["id"] for result in answer.json()["results"]]
        return [(await self.http.get(f"/v1/documents/{id_}")).json() for id_ in ids]

    async def document(self, **whose: str) -> dict[str, Any]:
        """Wait for the only document."""
        found: list[dict[str, Any]] = await until_it(lambda: self.documents(**whose))
        assert len(found) == 1
        return found[0]

    def archives(self) -> list[str]:
        return [path.read_text() for path in sorted(self.archive_dir.glob("voice-session-*.txt"))]

    async def archive(self) -> str:
        texts: list[str] = await until(self.archives)
        assert len(texts) == 1
        return texts[0]

    async def idle(self) -> None:
        """Wait until no call is live and all finalization jobs are done."""

        async def quiet() -> bool:
            state = (await self.http.get("/health")).json()
            return state["calls"] == state["endings"] == 0

        await until_it(quiet)


def _marks(call: Any) -> set[str]:
    return {frame["mark"]["name"] for frame in call.sent_frames if frame["event"] == "mark"}


def _ends_with_mark(call: Any) -> bool:
    return bool(call.sent_frames[-1]["event"] == "mark")


def make_carrier(name: str, **options: Any) -> Any:
    """A carrier without playback delay that waits for a slow gateway."""
    kind = {"twilio": FakeTwilio, "telnyx": FakeTelnyx}[name]
    made = kind(**{"public_url": PUBLIC_URL, "speed": 0, **options})
    made.webhook_seconds = made.upgrade_seconds = PATIENCE
    return made


@contextlib.asynccontextmanager
async def staged(
    folder: Path,
    carrier: Any,
    *,
    engine: Any = None,
    hurries: bool = False,
    connect: Connector = picows.connect,
    timeouts: Timeouts = Timeouts(),
    engines: Mapping[str, MakeEngine] = ENGINES,
    **environ: str,
) -> AsyncIterator[Stage]:
    """A gateway between this carrier and an engine, otherwise with default settings."""
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(carrier)
        engine = await stack.enter_async_context(engine or FakeDeepgram())
        archive_dir = folder / "archive"
        url = await stack.enter_async_context(
            running_gateway(
                {
                    "DATA_DIR": str(folder / "data"),
                    "VOICE_SESSION_ARCHIVE_DIR": str(archive_dir),
                    "PUBLIC_URL": PUBLIC_URL,
                    "ALLOWED_CALLERS": "*",
                    **engine.settings(),
                    "GATEWAY_ADMIN_TOKEN": ADMIN,
                    "MEMORY_VECTORS": "false",
                    # Or the agent's own language model would write summaries, and get requests that no test expects.
                    **({} if environ.keys() & SUMMARY_KEYS else {"SUMMARY_PROVIDER": "extractive"}),
                    **carrier.settings(),
                    **environ,
                },
                folder,
                hurries=hurries,
                connect=connect,
                timeouts=timeouts,
                engines=engines,
            )
        )
        carrier.gateway_url = url
        engine.origins[PUBLIC_URL] = url
        http = await stack.enter_async_context(patient_client(url, headers={"X-API-Key": ADMIN}))
        yield Stage(url, carrier, engine, archive_dir, http)
