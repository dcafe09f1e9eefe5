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
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
import orjson
from starlette.applications import Starlette

from gateway.app import Timeouts, create_app
from gateway.audio import seconds_of
from gateway.calls.call import Call
from gateway.calls.engine_connection import EngineTimeouts
from gateway.calls.manager import CallManager
from gateway.engines.deepgram import DeepgramEngine, DeepgramTimeouts
from gateway.engines.interface import VoiceEngine
from gateway.errors import RecordingError
from gateway.finalization.document import call_document
from gateway.finalization.summary.call_summary import CallSummary
from gateway.memory import facts, pinned_topics
from gateway.memory.facts import Fact
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.recall import Recall
from gateway.memory.summary_parser import PastCall
from gateway.replay.compare import Difference, compare, compare_stored
from gateway.replay.playback import RecordedRecall, RecordedToolLoader
from gateway.replay.player import TIMEOUT, Observer, Outcome, Player, StoredCall
from gateway.replay.recording import (
    AudioChecksum,
    CallHeader,
    RecordedEngine,
    RecordedFrame,
    RecordedNote,
    Recording,
)
from gateway.session import VoiceSession
from gateway.settings import Secret, Settings
from gateway.simulate.carriers import CarrierCall, SimulatedCarrier, SimulatedTelnyx, SimulatedTwilio
from gateway.simulate.engine import SimulatedEngine
from gateway.simulate.frames import AudioFrame, JsonFrame, ReceivedFrame
from gateway.simulate.gateway_under_test import GatewayAddress, GatewayApi, serve_on_loopback
from gateway.simulate.services import SimulatedLlm
from gateway.simulate.softphone import SimulatedSoftphone
from gateway.simulate.virtual_time import VirtualTimeLoop
from gateway.websocket.interface import Connector
from gateway.websocket.port_mux import PortMux

_FINALIZATION_SECONDS: Final = 30.0
_FASTEST: Final = 200.0
"""Times real time. Without a limit, timers of the gateway would overtake data on its way through a socket."""
_PATIENT: Final = Timeouts(engine=EngineTimeouts(memory=3.0), turn_recall=3.0)
"""For the machine's clock: memory reaches the first prompt even on a slow machine."""
_LONGEST_HANDSHAKE: Final = 600.0
"""Seconds: a handshake takes as long as in the recording."""


def replay(recording: Recording, *, speed: float = 0.0, timeouts: Timeouts = Timeouts()) -> list[Difference]:
    """
    Play one call into a temporary gateway; return the differences.

    The gateway runs on the clock of the recording, so its timers fire at the same places. `speed`: 1 for real time, 0
    for as fast as possible. `timeouts`: those of the gateway that recorded the call. Runs an event loop of its own.
    """

    async def play() -> list[Difference]:
        async with replay_harness(recording, plays_memory=True, timeouts=timeouts) as harness:
            await harness.seed(recording)
            outcome = await harness.play(recording, speed=1.0)
            stored = await harness.stored_call(recording)
        return [*compare(recording, outcome), *compare_stored(recording, stored)]

    with asyncio.Runner(loop_factory=lambda: VirtualTimeLoop(speed or _FASTEST)) as runner:
        return runner.run(play())


class OwnGateway:
    """The temporary gateway (`GatewayInternals`)."""

    def __init__(self, recording: Recording, *, plays_memory: bool, timeouts: Timeouts) -> None:
        """`plays_memory`: memory comes from the recording, else from the gateway's store."""
        self._recording = recording
        self._plays_memory = plays_memory
        self._timeouts = timeouts
        self._recall: RecordedRecall | None = None
        self._manager: CallManager | None = None

    @contextlib.asynccontextmanager
    async def serve(self, settings: Settings, engine_url: str) -> AsyncIterator[str]:
        """Run it while the block runs; yields its URL."""

        def make_engine(number: int, settings: Settings, connect: Connector) -> VoiceEngine:
            return PlayedEngine(engines[number], _engine_name(number), engine_url, connect)

        engines = self._recording.header.engines
        app = create_app(
            settings,
            engines={_engine_name(number): partial(make_engine, number) for number in range(len(engines))},
            timeouts=self._timeouts,
            recall=self._make_recall,
            tool_loader=partial(RecordedToolLoader, self._recording),
            identify=lambda *_, **__: self._recording.header.identity,
        )
        lifespan = app.router.lifespan_context

        @contextlib.asynccontextmanager
        async def observed(app: Starlette) -> AsyncIterator[Any]:
            async with lifespan(app) as state:
                self._manager = state["call_manager"] if state is not None else None
                yield state

        app.router.lifespan_context = observed
        async with serve_on_loopback(app, http=PortMux, ws="none", lifespan="on") as url:
            yield url

    def live_call(self) -> Call | None:
        if self._manager is None:
            return None
        return next((self._manager.operator.here(session_id) for session_id, _ in self._manager.monitors), None)

    def memory_arrives(self) -> None:
        if self._recall is not None:
            self._recall.come_late()

    def _make_recall(self, *parts: Any) -> Recall:
        if not self._plays_memory:
            return Recall(*parts)
        self._recall = RecordedRecall(self._recording, *parts)
        return self._recall


@dataclass(frozen=True)
class ReplayHarness:
    """A gateway with simulated peers. Plays recorded calls one after the other."""

    api: GatewayApi
    carrier: SimulatedCarrier
    engine: SimulatedEngine
    _gateway: OwnGateway
    _archive: Path

    async def play(
        self, recording: Recording, *, speed: float = 0.0, timeout: float = TIMEOUT, observer: Observer | None = None
    ) -> Outcome:
        peers = self.carrier, self.engine, self.api.address
        return await Player(recording, *peers, internals=self._gateway, speed=speed, timeout=timeout).play(observer)

    async def seed(self, recording: Recording) -> None:
        """Put what the recorded call remembered into the gateway's store."""
        for document in past_documents(recording):
            await self.api.request("POST", "/v1/documents", document)

    async def stored_call(self, recording: Recording) -> StoredCall:
        """Archive text and document of the call that was just played, once its finalization is complete."""
        with contextlib.suppress(TimeoutError):
            await self.api.wait_idle(_FINALIZATION_SECONDS)
        played = await self.api.newest_session()
        archive = self._archive / f"{played.replace(':', '-')}.txt"
        text = archive.read_text(encoding="utf-8") if archive.is_file() else ""
        header = recording.header
        hits = await self.api.call_documents(f"agent:{header.agent['name']}", f"caller:{recording.identity}")
        ids = [hit["id"] for hit in hits if hit["metadata"] and hit["metadata"].get("session_id") == played]
        return StoredCall(text, await self.api.document_text(ids[0]) if ids else "")


@contextlib.asynccontextmanager
async def replay_harness(
    recording: Recording, *, plays_memory: bool = False, timeouts: Timeouts = _PATIENT
) -> AsyncIterator[ReplayHarness]:
    """
    A harness with this recording's carrier, engines, agent and caller, and the model that wrote its summary.

    `plays_memory`: what the call remembers is the recorded memory, else what the gateway's store has.
    """
    header, summary = recording.header, recording.summary
    async with contextlib.AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-replay-")))
        http = await stack.enter_async_context(httpx.AsyncClient(trust_env=False))
        engine = await stack.enter_async_context(SimulatedEngine())
        admin_token = Secret(secrets.token_urlsafe(16))
        carrier: SimulatedCarrier
        match header.carrier:
            case "telnyx":
                carrier = SimulatedTelnyx(http)
            case "softphone":
                carrier = SimulatedSoftphone(http, admin_token)
            case _:
                carrier = SimulatedTwilio(http)
        llm = SimulatedLlm(summary.written_by if summary else "", orjson.dumps(summary).decode())
        services_url = await stack.enter_async_context(
            serve_on_loopback(Starlette(routes=[*carrier.routes(), *llm.routes()]))
        )
        settings = Settings(
            **carrier.settings(services_url),
            **llm.settings(services_url),
            data_dir=folder / "data",
            voice_session_archive_dir=folder / "archive",
            voice_session_archive_days=0,  # a recording may be old
            memory_retention_days=0,
            memory_vectors=False,
            voice_session_context_limit=max(
                3, *(len(memory.calls) for memory in (recording.memory, *recording.late_memory.values()))
            ),
            max_call_seconds=round(header.longest_call),
            allowed_callers=frozenset({header.caller or "*"}),
            agents={str(header.agent["name"]): _agent_table(recording, folder)},
            folder=folder,
            gateway_admin_token=admin_token,
        )
        gateway = OwnGateway(recording, plays_memory=plays_memory, timeouts=timeouts)
        url = await stack.enter_async_context(gateway.serve(settings, engine.url))
        api = GatewayApi(GatewayAddress(url), http, admin_token)
        yield ReplayHarness(api, carrier, engine, gateway, folder / "archive")


def _engine_name(number: int) -> str:
    return f"recorded-{number + 1}"


class PlayedEngine(DeepgramEngine):
    """One engine of a recorded call. Recordings hold Deepgram messages, whichever engine took the call."""

    def __init__(self, recorded: RecordedEngine, name: str, url: str, connect: Connector) -> None:
        super().__init__(connect, url, Secret("replay"), DeepgramTimeouts(connect=_LONGEST_HANDSHAKE))
        self.name, self.has_llm = name, recorded.has_llm


def _agent_table(recording: Recording, folder: Path) -> dict[str, Any]:
    """The recorded agent as a table of gateway.toml; its prompt becomes a file."""
    header, agent = recording.header, recording.header.agent
    prompt = folder / "prompt.md"
    prompt.write_text(str(agent["prompt"]), encoding="utf-8")
    names = ("sorry", "listen", "think", "language", "interrupt", "patience", "silence")
    table = {key: agent[key] for key in names if key in agent}
    optional = ("numbers", "timezone", "transfer_to", "disabled_tools")
    table |= {key: agent[key] for key in optional if agent.get(key)}
    if (filler := agent.get("filler")) and filler["phrases"]:  # a sound is in no recording
        table["filler"] = {"after": filler["after"], "say": filler["phrases"]}
    if any(agent.get("consent", {}).values()):
        table["consent"] = {**agent["consent"], "always": True}  # the replay itself is not recorded
    if agent.get("has_brain"):  # the simulated engine never calls the model, but the settings it gets must name one
        table["brain"] = "script"
        if not agent["engine_thinks"]:
            del table["think"]
    memory: dict[str, Any] = {}
    if "new_person_after" in agent:
        memory["repeat_caller"] = {"new_person_after": agent["new_person_after"]}
    kinds = ("attested", "partly_attested", "unattested", "failed", "withheld", "allow_listed")
    return {
        **table,
        "greeting": " ".join(filter(None, [agent.get("greeting", ""), *_added_to_greeting(recording)])),
        "voice": agent["speak"],
        "prompt": prompt.name,
        "engine": [*map(_engine_name, range(len(header.engines)))],
        "memory": {**memory, "trust": dict.fromkeys(kinds, header.trust)},
    }


def _added_to_greeting(recording: Recording) -> Iterator[str]:
    """What a tool had the agent say before the settings had left."""
    for step in recording.steps:
        match step:
            case RecordedFrame(content=JsonFrame({"type": "Settings"})):
                return
            case RecordedNote(name="action", content={"do": "say", "text": str(text)}):
                yield text


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
        caller=past_call.caller or header.identity,
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
        "tags": [source, f"agent:{header.agent['name']}", f"caller:{header.identity}"],
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
