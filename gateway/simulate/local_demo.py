"""
The demonstration on the local engine: two calls of one caller, spoken and heard for real, told as they happen.

A synthetic voice phones a real gateway; what it hears, understands, keeps and remembers is its own work. Nothing leaves
the machine.
"""

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import httpx

from gateway.errors import EngineRefused, EngineUnavailable
from gateway.settings import Secret, Settings
from gateway.simulate import voices
from gateway.simulate.scripted_caller import PreparedCaller
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

StartGateway = Callable[[Settings], AbstractAsyncContextManager[str]]
"""Runs a gateway for as long as a block lasts, and gives its address."""


@dataclass(frozen=True)
class SpokenTurnAudio:
    """One turn as the gateway wrote it down; where the caller began a line, also what was really said."""

    speaker: str
    heard: str
    said: str = ""


class LocalNarrator(Protocol):
    """Tells a person what happens."""

    def gateway_runs(self, url: str) -> None: ...
    def phone_rings(self, number: int, caller: str, called: str) -> None: ...
    def transcript(self, turns: Sequence[SpokenTurnAudio], error: WordError) -> None: ...
    def document_kept(self, document: str) -> None: ...


@dataclass(frozen=True)
class LocalEnding:
    """What the demonstration came to."""

    error: WordError
    remembered: bool
    """Whether the agent answered in the second call with what was said in the first."""


async def run_local_demo(start: StartGateway, narrator: LocalNarrator, *, speed: float) -> LocalEnding:
    """Both calls. What the second one knows, the first one left behind."""
    async with _stage(start) as stage:
        narrator.gateway_runs(stage.url)
        narrator.phone_rings(1, CALLER, CALLED)
        first = await _call(stage, FIRST_CALL, narrator, speed)
        narrator.document_kept(await stage.document())
        narrator.phone_rings(2, CALLER, CALLED)
        second = await _call(stage, SECOND_CALL, narrator, speed)
    answers = " ".join(turn.heard for turn in second if turn.speaker == "AGENT")
    kept = [turn.heard for turn in first if turn.speaker == "CALLER" and len(turn.heard.split()) > 4]
    return LocalEnding(_error_of(first) + _error_of(second), remembered=any(text in answers for text in kept))


@dataclass(frozen=True)
class _Stage:
    url: str
    admin_token: Secret
    archive: Path
    http: httpx.AsyncClient

    async def finished(self) -> None:
        """Every call has come to its end, and everything is kept."""
        async with asyncio.timeout(READY_SECONDS):
            while True:
                state = await self._get("/health")
                if not state["calls"] and not state["endings"]:
                    return
                await asyncio.sleep(0.02)

    async def ready(self) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                while True:
                    state = await self._get("/health")
                    if state["engine_state"] != "loading":
                        break
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise EngineUnavailable("the local engine did not become ready") from None
        if problem := state.get("engine_problem"):
            raise EngineRefused(problem)

    async def document(self) -> str:
        wish = {"query": "voice call summary", "tags": ["voice-session"], "limit": 1}
        headers = {"X-API-Key": self.admin_token.reveal()}
        found = (await self.http.post(f"{self.url}/v1/query", json=wish, headers=headers)).json()["results"]
        document = await self.http.get(f"{self.url}/v1/documents/{found[0]['id']}", headers=headers)
        return str(document.json()["content"])

    def newest_transcript(self) -> list[tuple[str, str]]:
        path = max(self.archive.glob("voice-session-*.txt"), key=lambda path: path.stat().st_mtime_ns)
        lines = path.read_text(encoding="utf-8").splitlines()
        return [(speaker, text) for speaker, colon, text in (line.partition(": ") for line in lines) if colon]

    async def _get(self, path: str) -> dict[str, Any]:
        state: dict[str, Any] = (await self.http.get(f"{self.url}{path}")).json()
        return state


@contextlib.asynccontextmanager
async def _stage(start: StartGateway) -> AsyncIterator[_Stage]:
    """A gateway of our own with an agent at the desk of a workshop, in a folder that goes away with it."""
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
            stage = _Stage(url, admin_token, folder / "archive", http)
            await stage.ready()
            yield stage


async def _call(stage: _Stage, lines: Sequence[str], narrator: LocalNarrator, speed: float) -> list[SpokenTurnAudio]:
    spoken = [voices.pico(line) for line in lines]
    async with phone_line(stage.url, stage.admin_token, caller=CALLER, called=CALLED) as line:
        caller = PreparedCaller(line, spoken)
        await line.talk(caller.speak, caller.listen, speed=speed)
    await stage.finished()
    turns = _beside(lines, stage.newest_transcript())
    narrator.transcript(turns, _error_of(turns))
    return turns


def _beside(lines: Sequence[str], transcript: Sequence[tuple[str, str]]) -> list[SpokenTurnAudio]:
    """The transcript, with what was really said at the first turn in which a line was heard."""
    turns: list[SpokenTurnAudio] = []
    unsaid, line, so_far = list(lines), "", ""
    for speaker, heard in transcript:
        said, both = "", f"{so_far} {heard}"
        if speaker == "CALLER" and unsaid and word_error(line, both).errors >= word_error(line, so_far).errors:
            said = line = unsaid.pop(0)
            so_far = heard
        elif speaker == "CALLER":
            so_far = both
        turns.append(SpokenTurnAudio(speaker, heard, said))
    return turns + [SpokenTurnAudio("CALLER", "", line) for line in unsaid]


def _error_of(turns: Sequence[SpokenTurnAudio]) -> WordError:
    """Of the whole call: where one turn ends and the next begins makes no difference."""
    return word_error(" ".join(turn.said for turn in turns), " ".join(t.heard for t in turns if t.speaker == "CALLER"))
