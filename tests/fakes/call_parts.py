"""The surroundings of a call, small enough for unit tests: log, media stream, engine, carrier leg, memory."""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gateway.agents import Agent
from gateway.calls.playout import Playout
from gateway.calls.recorder import NoRecorder
from gateway.calls.transcript import CallRecords, Transcript
from gateway.engines.interface import AgentSettings, EngineEvent, EngineEvents, LoadSettings, SettingsApplied
from gateway.errors import CarrierRefused, EngineError, NumberNotAllowed, StoreUnavailable
from gateway.llm.chat import ModelName
from gateway.memory.access import PinResult
from gateway.response_time import ResponseTime
from gateway.session import Consent, TrustLevel, Voicemail, VoiceSession
from tests.fakes.call_control import FakeCallControl

CALLER = "+12025550143"


class FakeEvents:
    """Keeps what a call writes to its log, in order."""

    def __init__(self) -> None:
        self.written: list[tuple[Any, ...]] = []

    def publish(self, event: str, **fields: Any) -> None:
        self.written.append((event, fields))

    def caller_said(self, text: str, at: datetime, *, is_late: bool = False) -> None:
        self.written.append(("caller", text))

    def agent_said(
        self, answer: int, text: str, at: datetime, *, by_operator: bool = False, before_answer: bool = False
    ) -> None:
        self.written.append(("agent", text))

    def cut_off(self, answer: int, heard: str, unheard: str) -> None:
        self.written.append(("cut off", heard, unheard))

    def set_off_record(self, off: bool) -> None:
        self.off_record = off

    def retract(self, session: VoiceSession, rows: Sequence[Mapping[str, Any]]) -> None:
        self.written.append(("retract", list(session.taken_back)))

    def set_trust(self, trust: TrustLevel) -> None:
        self.trust = trust

    def set_consent(self, consent: Consent) -> None:
        self.written.append(("consent", str(consent)))

    def set_voicemail(self, voicemail: Voicemail) -> None:
        self.written.append(("voicemail", str(voicemail)))

    def set_state(self, state: Mapping[str, Any]) -> None:
        self.written.append(("state", dict(state)))

    def set_identity(self, caller: str, number: str) -> None:
        self.written.append(("identity", caller, number))

    def first_audio_sent(self, measured: ResponseTime | None, model: ModelName | None = None) -> None:
        self.model = model

    def turn_ended(self) -> None: ...


class FakeRecorder(NoRecorder):
    def __init__(self) -> None:
        self.discarded = self.started = False

    def start(self) -> None:
        self.started = True

    def discard(self) -> None:
        self.discarded = True


def make_records() -> CallRecords:
    return CallRecords(FakeEvents(), FakeRecorder())  # type: ignore[arg-type]


def make_transcript(session: VoiceSession | None = None, records: CallRecords | None = None) -> Transcript:
    session = session or VoiceSession("maya", CALLER, "twilio")
    return Transcript(session, Playout(), records or make_records())


class FakeStream:
    """A media stream: keeps what it is sent. Marks come back when the test says that they were played."""

    def __init__(self) -> None:
        self.buffered_bytes = 0
        self.started_at = asyncio.get_running_loop().time()
        self.closed = 0
        self.sent: list[str | bytes] = []
        """Audio, marks by name, "clear", "filler" and "stop filler"."""

    @property
    def audio(self) -> bytes:
        return b"".join(item for item in self.sent if isinstance(item, bytes))

    @property
    def marks(self) -> list[str]:
        return [item for item in self.sent if isinstance(item, str) and item.startswith("m")]

    def send_audio(self, audio: bytes) -> None:
        self.sent.append(audio)

    def send_mark(self, name: str) -> None:
        self.sent.append(name)

    def send_clear(self) -> None:
        self.sent.append("clear")

    def finish_audio(self) -> None: ...

    def play_filler(self, audio: bytes) -> None:
        self.sent.append("filler")

    def stop_filler(self) -> None:
        self.sent.append("stop filler")

    def close(self, code: int = 1000) -> None:
        self.closed += 1


class FakeLeg:
    """A call at its carrier."""

    def __init__(self, *, refuses: bool = False, not_allowed: bool = False, stop_ends_call: bool = True) -> None:
        self.control = FakeCallControl(asks_to_resume=stop_ends_call)
        self.hangups = 0
        self.transfers: list[str] = []
        self._refuses = refuses
        self._not_allowed = not_allowed

    async def hang_up(self) -> None:
        self.hangups += 1
        if self._refuses:
            raise CarrierRefused("twilio", "hang-up", 500)

    async def transfer(self, target: str) -> None:
        if self._refuses:
            raise CarrierRefused("twilio", "transfer", 400)
        if self._not_allowed:
            raise NumberNotAllowed("a premium-rate or satellite number")
        self.transfers.append(target)


class FakeEngineSession:
    """An engine session: keeps what it is sent; `emit` reports an event."""

    def __init__(self, settings: AgentSettings, events: EngineEvents) -> None:
        self.settings = settings
        self.buffered_bytes = 0
        self.audio = b""
        self.said: list[str] = []
        self.added: list[str] = []
        self.answers: list[tuple[str, str]] = []
        self.ended_turns = 0
        self.dictations: list[bool] = []
        self.truncated: list[int] = []
        self._events = events

    def emit(self, *events: EngineEvent) -> None:
        for event in events:
            self._events.on_engine_event(event)

    def speak(self, audio: bytes) -> None:
        self._events.on_agent_audio(audio)

    def fail(self, error: EngineError) -> None:
        self._events.on_engine_closed(error)

    def send_audio(self, audio: bytes) -> None:
        self.audio += audio

    def send_silence(self, audio: bytes) -> None: ...

    def say(self, text: str, *, interrupt: bool = False) -> None:
        self.said.append(text)

    def update_instructions(self, text: str) -> None:
        self.added.append(text)

    def replace_settings(self, settings: AgentSettings) -> None:
        self.settings = settings

    def truncate(self, unheard_ms: int) -> None:
        self.truncated.append(unheard_ms)

    def expect_dictation(self, expected: bool) -> None:
        self.dictations.append(expected)

    def end_user_turn(self) -> None:
        self.ended_turns += 1

    def answer_tool(self, call_id: str, result: str) -> None:
        self.answers.append((call_id, result))

    def close(self) -> None: ...


class FakeVoiceEngine:
    """Opens one session after another, each ready at once; or refuses, or never answers."""

    name = "fake"
    has_llm = True
    is_ready = True

    def __init__(self, *, error: EngineError | None = None, hangs: bool = False) -> None:
        self.sessions: list[FakeEngineSession] = []
        self._error = error
        self._hangs = hangs

    def own_model(self, agent: Agent) -> ModelName | None:
        return ModelName("fake", "fake-1")

    @property
    def session(self) -> FakeEngineSession:
        return self.sessions[-1]

    async def connect(self, load_settings: LoadSettings, events: EngineEvents) -> FakeEngineSession:
        if self._error is not None:
            raise self._error
        if self._hangs:
            await asyncio.Event().wait()
        session = FakeEngineSession(await load_settings(), events)
        self.sessions.append(session)
        asyncio.get_running_loop().call_soon(session.emit, SettingsApplied())
        return session

    def health(self) -> dict[str, str]:
        return {"engine": self.name}

    async def run(self) -> None: ...


class FakeMemory:
    """What is loaded about the people on one number: facts of one of them."""

    seconds = 0.0
    elapsed = 0.0
    outcome = "loaded"

    def __init__(self, person: str = "", *, facts: Sequence[Any] = (), calls: Sequence[Any] = ()) -> None:
        self.person = person
        self.facts = list(facts)
        self.calls = list(calls)
        self.topics: list[Any] = []
        self.cancelled = False

    def person_is(self, name: str) -> bool:
        changed, self.person = name != self.person, name
        return changed

    async def by(self, seconds: float) -> list[Any]:
        return self.found()

    async def rest(self) -> list[Any]:
        return []

    def found(self) -> list[Any]:
        return list(self.calls)

    @property
    def of_everyone(self) -> tuple[list[Any], list[Any], list[Any]]:
        return self.calls, self.facts, self.topics

    def cancel(self) -> None:
        self.cancelled = True


class FakeMemorySource:
    """The memories of several callers. Erasing can be made to fail."""

    can_erase = True

    def __init__(self, *, fails: bool = False, **memories: FakeMemory) -> None:
        self.memories: dict[str, FakeMemory] = dict(memories)
        self.erased: list[str] = []
        self.pins: dict[str, str] = {}
        self.common_pin = ""
        self.is_locked = False
        self.tried: list[str] = []
        self._fails = fails

    def load(self, caller: str) -> Any:
        return self.memories.get(caller)

    async def erase(self, caller: str) -> None:
        if self._fails:
            raise StoreUnavailable("the store is away")
        self.erased.append(caller)

    async def check_pin(self, caller: str, tried: str) -> PinResult | None:
        self.tried.append(tried)
        pin = self.pins.get(caller, self.common_pin)
        if not pin:
            return None
        return PinResult.LOCKED if self.is_locked else PinResult.RIGHT if tried == pin else PinResult.WRONG

    async def pin_length(self, caller: str) -> int:
        if self._fails:
            raise StoreUnavailable("the store is away")
        return len(self.pins.get(caller, ""))

    async def set_pin(self, caller: str, pin: str) -> None:
        self.pins[caller] = pin
