"""
The demo on the local engine: two calls of one caller with real speech recognition and synthesis.

A synthetic voice calls a real gateway. Recognition, memory and answers are the gateway's own work. Nothing leaves the
machine.
"""

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import httpx

from gateway.errors import EngineRefused, EngineUnavailable
from gateway.settings import Secret, Settings
from gateway.simulate import voices
from gateway.simulate.gateway_under_test import GatewayAddress, GatewayApi, StartGateway
from gateway.simulate.scripted_caller import ScriptedCaller
from gateway.simulate.softphone import phone_line
from gateway.simulate.word_error import WordError, word_error

CALLER: Final = "+12025550143"
CALLED: Final = "+12025550100"
GREETING: Final = "Harbour Street Bicycles, this is Maya. How can I help you?"
FIRST_CALL: Final = (
    "Hi, my name is Anna. My road bike needs new brake pads.",
    "My appointment is on Thursday at ten in the morning.",
    "I prefer a text message when it is ready.",
    "My order number is four seven two nine one six.",
    "Yes, that is right.",
    "Thank you, goodbye.",
)
SECOND_CALL: Final = (
    "Hello, it is me again. When is my appointment?",
    "What did we talk about last time?",
    "Thank you, goodbye.",
)
READY_SECONDS: Final = 60.0


@dataclass(frozen=True)
class TranscribedTurn:
    """One turn of the transcript. `said` is the caller's real line, at the first turn in which it was recognized."""

    speaker: str
    heard: str
    said: str = ""


class LocalNarrator(Protocol):
    """Presents the demo. Called in the order of events."""

    def gateway_runs(self, url: str) -> None: ...
    def phone_rings(self, number: int, caller: str, called: str) -> None: ...
    def transcript(self, turns: Sequence[TranscribedTurn], error: WordError) -> None: ...
    def document_kept(self, document: str) -> None: ...


@dataclass(frozen=True)
class LocalDemoResult:
    """The word error of both calls, and whether the agent used words of the first call in the second."""

    error: WordError
    remembered: bool


async def run_local_demo(start: StartGateway, narrator: LocalNarrator, *, speed: float) -> LocalDemoResult:
    """Place both calls. The store starts empty: the second call's memory comes from the first."""
    async with _demo_gateway(start) as gateway:
        narrator.gateway_runs(gateway.api.address.url)
        narrator.phone_rings(1, CALLER, CALLED)
        first = await _call(gateway, FIRST_CALL, narrator, speed)
        narrator.document_kept(await gateway.document())
        narrator.phone_rings(2, CALLER, CALLED)
        second = await _call(gateway, SECOND_CALL, narrator, speed)
    answers = " ".join(turn.heard for turn in second if turn.speaker == "AGENT")
    kept = [turn.heard for turn in first if turn.speaker == "CALLER" and len(turn.heard.split()) > 4]
    return LocalDemoResult(_error_of(first) + _error_of(second), remembered=any(text in answers for text in kept))


@dataclass(frozen=True)
class _DemoGateway:
    api: GatewayApi
    archive: Path

    async def wait_ready(self) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                while True:
                    state = await self.api.request("GET", "/health")
                    if state["engine_state"] != "loading":
                        break
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise EngineUnavailable("the local engine did not become ready") from None
        if problem := state.get("engine_problem"):
            raise EngineRefused(problem)

    async def document(self) -> str:
        return await self.api.document_text((await self.api.call_documents())[0]["id"])

    def newest_transcript(self) -> list[tuple[str, str]]:
        path = max(self.archive.glob("voice-session-*.txt"), key=lambda path: path.stat().st_mtime_ns)
        lines = path.read_text(encoding="utf-8").splitlines()
        return [(speaker, text) for speaker, colon, text in (line.partition(": ") for line in lines) if colon]


@contextlib.asynccontextmanager
async def _demo_gateway(start: StartGateway) -> AsyncIterator[_DemoGateway]:
    """A gateway in a temporary folder with one agent, the receptionist of a bicycle workshop."""
    admin_token = Secret(secrets.token_urlsafe(16))
    with tempfile.TemporaryDirectory(prefix="gateway-demo-") as name:
        folder = Path(name)
        (folder / "prompt.md").write_text("What you know from earlier calls:\n{{memory}}\n", encoding="utf-8")
        settings = Settings(
            voice_engine="local",
            data_dir=folder / "data",
            voice_session_archive_dir=folder / "archive",
            gateway_admin_token=admin_token,
            agents={"maya": {"prompt": "prompt.md", "greeting": GREETING, "numbers": [CALLED], "brain": "script"}},
            folder=folder,
        )
        async with start(settings) as url, httpx.AsyncClient(trust_env=False) as http:
            gateway = _DemoGateway(GatewayApi(GatewayAddress(url), http, admin_token), folder / "archive")
            await gateway.wait_ready()
            yield gateway


async def _call(
    gateway: _DemoGateway, lines: Sequence[str], narrator: LocalNarrator, speed: float
) -> list[TranscribedTurn]:
    spoken = [voices.pico(line) for line in lines]
    async with phone_line(gateway.api.address.url, gateway.api.admin_token, caller=CALLER, called=CALLED) as line:
        caller = ScriptedCaller(line, spoken)
        await line.talk(caller.speak, caller.listen, speed=speed)
    await gateway.api.wait_idle(READY_SECONDS)
    turns = _aligned(lines, gateway.newest_transcript())
    narrator.transcript(turns, _error_of(turns))
    return turns


def _aligned(lines: Sequence[str], transcript: Sequence[tuple[str, str]]) -> list[TranscribedTurn]:
    """The transcript with each real line at the first turn in which it was recognized."""
    turns: list[TranscribedTurn] = []
    unsaid, line, so_far = list(lines), "", ""
    for speaker, heard in transcript:
        said, both = "", f"{so_far} {heard}"
        if speaker == "CALLER" and unsaid and word_error(line, both).errors >= word_error(line, so_far).errors:
            said = line = unsaid.pop(0)
            so_far = heard
        elif speaker == "CALLER":
            so_far = both
        turns.append(TranscribedTurn(speaker, heard, said))
    return turns + [TranscribedTurn("CALLER", "", line) for line in unsaid]


def _error_of(turns: Sequence[TranscribedTurn]) -> WordError:
    """The word error of the whole call, independent of turn boundaries."""
    return word_error(" ".join(turn.said for turn in turns), " ".join(t.heard for t in turns if t.speaker == "CALLER"))
