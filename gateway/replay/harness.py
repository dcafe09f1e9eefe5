"""
Where recorded calls are played: a temporary gateway with simulated peers, or a gateway that is already running.

The temporary gateway works in a temporary folder on loopback. The caller of this module starts it; the harness seeds
and reads its store through the HTTP API.
"""

import asyncio
import contextlib
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
from starlette.applications import Starlette

from gateway.audio import seconds_of
from gateway.errors import RecordingError
from gateway.finalization.document import call_document
from gateway.finalization.summary.call_summary import CallSummary
from gateway.memory import facts, pinned_topics
from gateway.memory.facts import Fact
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.summary_parser import PastCall
from gateway.replay.player import TIMEOUT, Observer, Outcome, Player, StoredCall
from gateway.replay.recording import AudioChecksum, CallHeader, Fields, RecordedFrame, Recording
from gateway.session import VoiceSession
from gateway.settings import Secret, Settings
from gateway.simulate.carriers import CarrierCall, SimulatedCarrier, SimulatedTelnyx, SimulatedTwilio
from gateway.simulate.engine import SimulatedEngine
from gateway.simulate.frames import AudioFrame, JsonFrame, ReceivedFrame
from gateway.simulate.gateway_under_test import GatewayAddress, GatewayApi, own_gateway, serve_on_loopback
from gateway.simulate.services import SimulatedLlm, SimulatedRemem

_FINALIZATION_SECONDS: Final = 30.0
_CARRIERS: Final[dict[str, type[SimulatedTwilio] | type[SimulatedTelnyx]]] = {
    "twilio": SimulatedTwilio,
    "telnyx": SimulatedTelnyx,
    "softphone": SimulatedTwilio,  # the softphone uses Twilio's media protocol
}


@dataclass(frozen=True)
class ReplayHarness:
    """A gateway with simulated peers. Plays recorded calls one after the other."""

    api: GatewayApi
    carrier: SimulatedCarrier
    engine: SimulatedEngine
    _archive: Path

    async def play(
        self, recording: Recording, *, speed: float = 0.0, timeout: float = TIMEOUT, observer: Observer | None = None
    ) -> Outcome:
        player = Player(recording, self.carrier, self.engine, self.api.address, speed=speed, timeout=timeout)
        return await player.play(observer)

    async def seed(self, recording: Recording) -> None:
        """Put what the recorded call remembered into the gateway's store."""
        for document in past_documents(recording):
            await self.api.request("POST", "/v1/documents", document)

    async def stored_call(self, recording: Recording) -> StoredCall:
        """Archive text and document of the call that was just played, once its finalization is complete."""
        with contextlib.suppress(TimeoutError):
            await self.api.wait_idle(_FINALIZATION_SECONDS)
        known = {past_call.session_id for past_call in recording.memory.calls}
        header = recording.header
        hits = await self.api.call_documents(f"agent:{header.agent['name']}", f"caller:{header.caller}")
        new = [hit for hit in hits if hit["metadata"] and hit["metadata"].get("session_id", "") not in known]
        if not new:
            return StoredCall()
        latest = max(new, key=lambda hit: str(hit["created_at"]))
        archive = self._archive / f"{latest['metadata']['session_id'].replace(':', '-')}.txt"
        text = archive.read_text(encoding="utf-8") if archive.is_file() else ""
        return StoredCall(text, await self.api.document_text(latest["id"]))


@contextlib.asynccontextmanager
async def replay_harness(recording: Recording) -> AsyncIterator[ReplayHarness]:
    """A harness with this recording's carrier, agent and caller, and the model that wrote its summary."""
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-replay-")))
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        engine = await stack.enter_async_context(SimulatedEngine())
        carrier = _CARRIERS[recording.header.carrier](http)
        summary = recording.summary
        llm = SimulatedLlm(summary.written_by if summary else "", orjson.dumps(summary).decode())
        remem = _late_store(recording, engine)
        routes = [*carrier.routes(), *llm.routes(), *remem.routes()]
        services_url = await stack.enter_async_context(serve_on_loopback(Starlette(routes=routes)))
        admin_token = Secret(secrets.token_urlsafe(16))
        settings = Settings(
            **carrier.settings(services_url),
            **llm.settings(services_url),
            **remem.settings(services_url),
            data_dir=folder / "data",
            voice_session_archive_dir=folder / "archive",
            voice_session_context_limit=max(3, len((recording.late_memory or recording.memory).calls)),
            allowed_callers=frozenset({recording.header.caller or "*"}),
            agents={str(recording.header.agent["name"]): _agent_table(recording.header.agent, folder)},
            folder=folder,
            deepgram_api_key=Secret("replay"),
            deepgram_agent_url=engine.url,
            gateway_admin_token=admin_token,
        )
        url = await stack.enter_async_context(own_gateway(settings))
        yield ReplayHarness(GatewayApi(GatewayAddress(url), http, admin_token), carrier, engine, folder / "archive")


def _late_store(recording: Recording, engine: SimulatedEngine) -> SimulatedRemem:
    """The remote store, where memory reached the recorded call late: it answers at the same point of the call."""
    known = {call.session_id for call in recording.memory.calls}
    late = recording.late_memory.calls if recording.late_memory is not None else ()
    documents = [stored_document(call, recording.header) for call in late if call.session_id not in known]
    messages = 0  # that the engine had received before the update
    for frame in recording.frames:
        if frame.direction == "to" and frame.peer == "engine" and isinstance(frame.content, JsonFrame):
            if frame.content.fields.get("type") == "UpdatePrompt":
                break
            messages += 1

    async def ready() -> None:
        await engine.sink.wait_for(messages=messages, audio_bytes=0, timeout=TIMEOUT)

    return SimulatedRemem(documents, ready)


def _agent_table(agent: Fields, folder: Path) -> dict[str, Any]:
    """The recorded agent as a table of gateway.toml; its prompt becomes a file."""
    prompt = folder / "prompt.md"
    prompt.write_text(str(agent["prompt"]), encoding="utf-8")
    table = {key: agent[key] for key in ("greeting", "sorry", "listen", "think", "language") if key in agent}
    given = {key: agent[key] for key in ("numbers", "timezone") if agent.get(key)}
    if any(agent.get("consent", {}).values()):
        given["consent"] = {**agent["consent"], "always": True}  # the replay itself is not recorded
    if agent.get("has_brain"):  # the simulated engine never calls the model, but the settings it gets must name one
        given["brain"] = "script"
        if not agent["engine_thinks"]:
            del table["think"]
    return {**table, **given, "voice": agent["speak"], "prompt": prompt.name}


# What a recorded call found in the store


def past_documents(recording: Recording) -> Iterator[dict[str, Any]]:
    """Documents that make a store return what the recorded call remembered from the start."""
    header, memory = recording.header, recording.memory
    yield from (stored_document(call, header) for call in memory.calls)
    yield from (_fact_document(fact, header) for fact in memory.facts)
    yield from (_pin_document(pin, header) for pin in memory.pins)


def stored_document(past_call: PastCall, header: CallHeader) -> dict[str, Any]:
    """The document of an earlier call, rebuilt from what the recorded call remembered of it."""
    session = VoiceSession(
        id=past_call.session_id,
        agent=past_call.agent or header.agent["name"],
        caller=past_call.caller or header.caller,
        carrier=header.carrier,
        started_at=past_call.started_at,
        ended_at=past_call.started_at,
        trust=past_call.trust,
    )
    summary = CallSummary(
        caller_name=past_call.caller_name,
        topics=past_call.topics,
        decisions=past_call.decisions,
        action_items=past_call.action_items,
        facts=past_call.facts,
        context=past_call.context,
        written_by="",
    )
    document = call_document(session, summary, None)
    return {**asdict(document), "tags": list(document.tags), "created_at": session.started_at.isoformat()}


def _fact_document(fact: Fact, header: CallHeader) -> dict[str, Any]:
    fields = asdict(fact)
    metadata = {name: fields[name] for name in ("type", "confidence", "turns", "instead_of", "person")}
    metadata |= {"session": fact.session_id, "last_said_at": fact.last_said_at.isoformat(), **fact.trust.mark}
    return _document(facts.SOURCE, fact.id, fact.text, fact.said_at, metadata, header)


def _pin_document(pin: PinnedTopic, header: CallHeader) -> dict[str, Any]:
    fields = asdict(pin)
    metadata = {name: fields[name] for name in ("title", "about", "status", "open_items", "state", "calls", "turns")}
    history = [
        {"state": event.state, "text": event.text, "session": event.session_id, "at": event.at.isoformat()}
        for event in pin.history
    ]
    metadata |= {"session": pin.session_id, "last_said_at": pin.last_said_at.isoformat(), "history": history}
    metadata |= pin.trust.mark
    return _document(pinned_topics.SOURCE, pin.id, pin.title, pin.since, metadata, header)


def _document(
    source: str, source_id: str, content: str, created_at: datetime, metadata: dict[str, Any], header: CallHeader
) -> dict[str, Any]:
    return {
        "content": content,
        "source": source,
        "source_id": source_id,
        "tags": [source, f"agent:{header.agent['name']}", f"caller:{header.caller}"],
        "created_at": created_at.isoformat(),
        "metadata": metadata,
    }


# A running gateway


@dataclass(frozen=True)
class CallerAudio:
    """What the caller received."""

    seconds: float
    marks: int
    clears: int


@dataclass(frozen=True)
class RunningGateway:
    """A gateway that is already running, and its Twilio account."""

    address: GatewayAddress
    account_sid: str
    auth_token: Secret

    async def play(self, recording: Recording, *, engine_port: int, speed: float) -> Outcome:
        """Play carrier and engine. Everything that reaches either can be compared."""
        async with httpx.AsyncClient(trust_env=False) as http, SimulatedEngine(engine_port) as engine:
            return await Player(recording, self._twilio(recording, http), engine, self.address, speed=speed).play()

    async def speak(self, recording: Recording, *, speed: float) -> CallerAudio:
        """Play the caller alone. The gateway's own engine answers, so nothing can be compared."""
        async with httpx.AsyncClient(trust_env=False) as http:
            carrier, header = self._twilio(recording, http), recording.header
            call = await carrier.place_call(header.caller, header.called, recording.stream_id, self.address)
            try:
                await self._speak(recording, carrier, call, speed)
            finally:
                await call.close()
        contents = [frame.content for frame in call.sink.frames]
        audio_bytes = sum(len(content.audio) for content in contents if isinstance(content, AudioFrame))
        events = [content.fields.get("event") for content in contents if isinstance(content, JsonFrame)]
        return CallerAudio(seconds_of(audio_bytes), events.count("mark"), events.count("clear"))

    def _twilio(self, recording: Recording, http: httpx.AsyncClient) -> SimulatedTwilio:
        if recording.header.carrier == "telnyx":
            raise RecordingError(
                f"{recording.path} is a Telnyx call, and only Telnyx can sign for a running gateway; leave out --url"
            )
        return SimulatedTwilio(http, account_sid=self.account_sid, auth_token=self.auth_token)

    async def _speak(self, recording: Recording, carrier: SimulatedCarrier, call: CarrierCall, speed: float) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        echoed = 0
        for frame in recording.frames:
            if frame.peer != "carrier" or frame.direction != "from" or _is_mark(frame):
                continue  # recorded marks answer a gateway that sent other ones
            await asyncio.sleep(max(0.0, began + frame.at / speed - clock()) if speed else 0)
            if call.ended.is_set():
                return
            marks = [received.content for received in call.sink.frames if _is_mark(received)]
            for mark in marks[echoed:]:
                await call.send(mark)
            echoed = len(marks)
            assert not isinstance(frame.content, AudioChecksum)  # recorded for sent audio only
            await call.send(frame.content)
        await carrier.hang_up(call, self.address)


def _is_mark(frame: RecordedFrame | ReceivedFrame) -> bool:
    return isinstance(frame.content, JsonFrame) and frame.content.fields.get("event") == "mark"
