"""
A stage for recorded calls: a real gateway of our own, and around it a carrier, an engine and a language model.

Everything is on loopback and in a temporary folder. The gateway is started by whoever uses the stage; what it keeps is
put in and read through its own interface.
"""

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
from starlette.applications import Starlette

from gateway.errors import StoreUnavailable
from gateway.replay.carrier_player import Carrier, GatewayAddress
from gateway.replay.engine_player import EnginePlayer
from gateway.replay.expected import Remembered, past_documents
from gateway.replay.llm_player import LlmPlayer
from gateway.replay.loopback import served
from gateway.replay.player import PATIENCE, Outcome, Player, Watch
from gateway.replay.recording import Fields, Recording
from gateway.replay.remem_player import RememPlayer
from gateway.replay.telnyx_player import TelnyxPlayer
from gateway.replay.twilio_player import TwilioPlayer
from gateway.settings import Secret, Settings

StartGateway = Callable[[Settings], AbstractAsyncContextManager[str]]
"""Runs a gateway for as long as a block lasts, and gives its address."""

REMEMBER_SECONDS: Final = 30.0
CARRIERS: Final[dict[str, type[TwilioPlayer] | type[TelnyxPlayer]]] = {
    "twilio": TwilioPlayer,
    "telnyx": TelnyxPlayer,
    "softphone": TwilioPlayer,  # it speaks Twilio's dialect
}


@dataclass(frozen=True)
class Stage:
    """A gateway that recorded calls can be played into, one after the other."""

    gateway: GatewayAddress
    carrier: Carrier
    engine: EnginePlayer
    _http: httpx.AsyncClient
    _folder: Path
    _store_key: Secret

    async def play(
        self, recording: Recording, *, speed: float = 0.0, patience: float = PATIENCE, watch: Watch | None = None
    ) -> Outcome:
        player = Player(recording, self.carrier, self.engine, self.gateway, speed=speed, patience=patience, watch=watch)
        return await player.play()

    async def seed(self, recording: Recording) -> None:
        """Put what the recorded call remembered into the gateway's store."""
        for document in past_documents(recording):
            await self._request("POST", "/v1/documents", document)

    async def remembered(self, recording: Recording) -> Remembered:
        """What the call that was just played has left behind, as soon as it is complete."""
        await self._everything_kept()
        known = {past_call.session_id for past_call in recording.memory.calls}
        tags = ["voice-session", f"agent:{recording.header.agent['name']}", f"caller:{recording.header.caller}"]
        found = await self._request("POST", "/v1/query", {"query": "voice call summary", "tags": tags, "limit": 100})
        calls = {hit["metadata"].get("session_id", ""): hit for hit in found["results"] if hit["metadata"]}
        new = [hit for session_id, hit in calls.items() if session_id not in known]
        if not new:
            return Remembered()
        latest = max(new, key=lambda hit: str(hit["created_at"]))
        document = await self._request("GET", f"/v1/documents/{latest['id']}")
        return Remembered(self._archived(latest["metadata"]["session_id"]), document["content"])

    def _archived(self, session_id: str) -> str:
        path = self._folder / "archive" / f"{session_id.replace(':', '-')}.txt"
        return path.read_text(encoding="utf-8") if path.is_file() else ""

    async def _everything_kept(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(REMEMBER_SECONDS):
                while True:
                    state = await self._request("GET", "/health")
                    if not state["calls"] and not state["endings"]:
                        return
                    await asyncio.sleep(0.02)

    async def _request(self, method: str, path: str, body: Fields | None = None) -> Any:
        headers = {"X-API-Key": self._store_key.reveal()}
        answer = await self._http.request(method, self.gateway.local(path), json=body, headers=headers)
        if not answer.is_success:
            raise StoreUnavailable(f"the gateway answered {path} with status {answer.status_code}")
        return answer.json()


@contextlib.asynccontextmanager
async def own_stage(recording: Recording, start: StartGateway) -> AsyncIterator[Stage]:
    """A stage that fits this recording: its carrier, its agent, its caller, and whoever wrote its summary."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-replay-")))
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        engine = await stack.enter_async_context(EnginePlayer())
        carrier = CARRIERS[recording.header.carrier](http)
        llm = LlmPlayer(recording.summary)
        remem = RememPlayer(recording, engine)
        routes = [*carrier.routes(), *llm.routes(), *remem.routes()]
        outside = await stack.enter_async_context(served(Starlette(routes=routes)))
        store_key = Secret(secrets.token_urlsafe(16))
        settings = Settings(
            **carrier.settings(outside),
            **llm.settings(outside),
            **remem.settings(outside),
            **_own_settings(recording, folder),
            deepgram_api_key=Secret("replay"),
            deepgram_agent_url=engine.url,
            gateway_admin_token=store_key,
        )
        url = await stack.enter_async_context(start(settings))
        yield Stage(GatewayAddress(url), carrier, engine, http, folder, store_key)


def _own_settings(recording: Recording, folder: Path) -> dict[str, Any]:
    return {
        "data_dir": folder / "data",
        "voice_session_archive_dir": folder / "archive",
        "voice_session_enabled": recording.header.remembers,
        "voice_session_context_limit": max(3, len((recording.late_memory or recording.memory).calls)),
        "allowed_callers": frozenset({recording.header.caller or "*"}),
        "agents": {str(recording.header.agent["name"]): _agent_table(recording.header.agent, folder)},
        "folder": folder,
    }


def _agent_table(agent: Fields, folder: Path) -> dict[str, Any]:
    """The recorded agent as a table of gateway.toml; its prompt becomes a file."""
    prompt = folder / "prompt.md"
    prompt.write_text(str(agent["prompt"]), encoding="utf-8")
    table = {key: agent[key] for key in ("greeting", "sorry", "listen", "think") if key in agent}
    given = {key: agent[key] for key in ("numbers", "timezone") if agent.get(key)}
    if agent.get("has_brain"):  # the recorded engine asks nobody, but has to be told whom
        given["brain"] = "script"
        if not agent["engine_thinks"]:
            del table["think"]
    return {**table, **given, "voice": agent["speak"], "prompt": prompt.name}
