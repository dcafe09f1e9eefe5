"""
The interface between a call and its voice engine.

A `VoiceEngine` opens one `EngineSession` per connection. The call sends audio and commands to the session; everything
the engine reports arrives through `EngineEvents`. Nothing here is specific to one engine.

Audio is mu-law, 8000 Hz, mono, in both directions. `registry.py` describes how to add an engine.
"""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from gateway.agents import Agent
from gateway.errors import EngineError, EngineRefused
from gateway.extras import how_to_install
from gateway.llm.chat import LlmEndpoint, ModelName
from gateway.metrics import ADDED_DELAY

MEASURED_CHUNKS: Final = 50
"""One chunk of agent audio in this many is timed."""

# Settings: what a session needs to know about the call


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A function that the agent calls. `arguments` is JSON text and may be empty."""

    id: str
    name: str
    arguments: str
    thought_signature: str = ""
    """Opaque data of some models (Gemini), returned to them with the call."""


@dataclass(frozen=True, slots=True)
class AgentFunction:
    """A function that the agent may call; the gateway runs it."""

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=lambda: {"type": "object", "properties": {}})
    speculative: bool = False
    """It has no side effect, so it may run before it is certain that the caller has finished speaking."""


@dataclass(frozen=True, slots=True)
class HistoryMessage:
    """One turn of the conversation so far."""

    role: Literal["user", "assistant"]
    text: str


@dataclass(frozen=True, slots=True)
class HistoryToolCall:
    """A function call of the conversation so far, with its result."""

    call: FunctionCall
    answer: str


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """How the agent behaves in one session. A resumed conversation has a history and no greeting."""

    agent: Agent
    """The agent's configuration. Each engine reads its own options from it."""
    prompt: str
    """The agent's instructions, rendered for this call."""
    greeting: str = ""
    functions: Sequence[AgentFunction] = ()
    history: Sequence[HistoryMessage | HistoryToolCall] = ()
    llm: LlmEndpoint | None = None
    """None: the engine uses its own language model."""
    keyterms: Sequence[str] = ()
    """Names that the caller may say, from memory, for recognisers that can be given some."""


Patience = Literal["short", "normal", "long", "dictation"]
"""How long a pause of the caller may be before it ends their turn. Numbers and spellings have long ones."""

LoadSettings = Callable[[], Awaitable[AgentSettings]]


# Events: what the engine reports


@dataclass(frozen=True, slots=True)
class EngineGreeted:
    """The engine accepted the connection and waits for its settings."""

    request_id: str


@dataclass(frozen=True, slots=True)
class SettingsApplied:
    """The session is ready for audio."""


@dataclass(frozen=True, slots=True)
class UserStartedSpeaking:
    """The caller began to speak. May be repeated."""

    answer_goes_on: bool = False
    """Whether the engine goes on with its answer. Else it sends no more of it, apart from what is on the way."""


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The caller's turn is complete; its text follows, unless it had no words."""

    turn: str = ""
    """Names the turn where its text may come later than the answer to it."""


@dataclass(frozen=True, slots=True)
class UserSaid:
    """The final text of one whole turn of the caller."""

    text: str
    turn: str = ""
    """As in TurnEnded."""


@dataclass(frozen=True, slots=True)
class AgentSaid:
    """Part of the agent's answer, usually a sentence, sent about when its audio begins."""

    text: str


@dataclass(frozen=True, slots=True)
class WordEnd:
    """The end of a word: the characters of its text up to there, and the bytes of the text's audio."""

    characters: int
    audio_bytes: int


@dataclass(frozen=True, slots=True)
class WordsTimed:
    """Where the next words of the last `AgentSaid` end. Comes before their audio, from voices that report it."""

    ends: tuple[WordEnd, ...]


@dataclass(frozen=True, slots=True)
class AgentAudioDone:
    """The last audio of this answer was sent; the carrier still plays what it has queued."""


@dataclass(frozen=True, slots=True)
class FunctionsRequested:
    """The agent waits for the result of each call."""

    calls: tuple[FunctionCall, ...]


@dataclass(frozen=True, slots=True)
class FunctionsCancelled:
    """The agent no longer wants these results: the caller had not finished speaking."""

    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptUpdated:
    """Added instructions are in effect."""


@dataclass(frozen=True, slots=True)
class InjectionRefused:
    """A `say` was refused because the caller or the agent was speaking."""


@dataclass(frozen=True, slots=True)
class LatencyReported:
    """The engine's own measurements in seconds, as far as it reports them; not bound to a turn."""

    stt: float | None = None
    """From the end of speech to its text."""
    llm: float | None = None
    """From the request to the model's first text."""
    tts: float | None = None
    """From the first text to the first audio."""


@dataclass(frozen=True, slots=True)
class UsageReported:
    """What the engine has used since its last report, by kind: tokens, or seconds of audio."""

    usage: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class EngineWarned:
    """A problem that does not end the session."""

    code: str


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine ends this session. `retryable`: a new one may work."""

    code: str
    retryable: bool


CallerEvent = UserStartedSpeaking | TurnEnded | UserSaid
AgentSpeech = AgentSaid | WordsTimed | AgentAudioDone
AgentEvent = AgentSpeech | FunctionsRequested | FunctionsCancelled | PromptUpdated | InjectionRefused
SessionEvent = EngineGreeted | SettingsApplied | LatencyReported | UsageReported | EngineWarned | EngineFailed
EngineEvent = CallerEvent | AgentEvent | SessionEvent


class EngineRecorder(Protocol):
    """The part of a call's recorder that engine sessions write to. Every method returns at once."""

    @property
    def wants_frames(self) -> bool: ...

    def from_engine(self, frame: bytes) -> None: ...
    def to_engine(self, frame: bytes) -> None: ...
    def audio_from_engine(self, audio: bytes) -> None: ...
    def audio_to_engine(self, audio: bytes) -> None: ...


class EngineEvents(Protocol):
    """Receives what a session reports. Called on the event loop; every method returns at once."""

    @property
    def recorder(self) -> EngineRecorder: ...

    def on_agent_audio(self, audio: bytes) -> None:
        """Audio of any length, often faster than real time."""

    def on_engine_event(self, event: EngineEvent) -> None: ...

    def on_engine_closed(self, error: EngineError) -> None:
        """The session ended without `close`. Called once, last."""


# The engine


class AgentAudioOutput:
    """Passes agent audio from a session to its call, and records it."""

    __slots__ = ("_added_delay", "_chunks", "_pass_on", "_record")  # used for each frame

    def __init__(self, events: EngineEvents, engine: str) -> None:
        self._added_delay = ADDED_DELAY.labels("to carrier", engine)
        self._chunks = 0
        self.bind(events)

    def bind(self, events: EngineEvents) -> None:
        """Bind the methods of the call directly. Again once it has media, if the connection was opened before."""
        self._record = events.recorder.audio_from_engine if events.recorder.wants_frames else None
        self._pass_on = events.on_agent_audio

    def send(self, audio: bytes) -> None:
        self._chunks += 1
        began = 0.0 if self._chunks % MEASURED_CHUNKS else time.perf_counter()
        if self._record is not None:
            self._record(audio)
        self._pass_on(audio)
        if began:
            self._added_delay.observe(time.perf_counter() - began)

    def close(self) -> None:
        """Drop all further audio."""
        self._record = None
        self._pass_on = lambda audio: None


class EngineSession(Protocol):
    """
    One live connection. Every method returns at once, and does nothing once the session has ended.

    After `close` no event is delivered, not even for data that was already in flight.
    """

    @property
    def buffered_bytes(self) -> int:
        """Data that the engine has not taken yet."""

    def send_audio(self, audio: bytes) -> None:
        """Caller audio, one carrier frame at a time."""

    def send_silence(self, audio: bytes) -> None:
        """Silence in place of audio that the carrier did not send. Not recorded."""

    def say(self, text: str, *, interrupt: bool = False) -> None:
        """Say this verbatim: after the current answer, or with `interrupt` instead of it."""

    def update_instructions(self, text: str) -> None:
        """Add to the agent's instructions."""

    def replace_settings(self, settings: AgentSettings) -> None:
        """Replace the agent's instructions and functions; nothing of the old instructions remains."""

    def truncate(self, unheard_ms: int) -> None:
        """
        The caller interrupted: so much of what this session sent last was not played.

        For engines that keep the history. Counted from the end, because not all audio of a session is an answer.
        """

    def end_user_turn(self) -> None:
        """Treat the caller's turn as complete."""

    def expect_dictation(self, expected: bool) -> None:
        """The agent has asked for a number, a spelling or an address, or no longer: wait for longer pauses."""

    def answer_tool(self, call_id: str, result: str) -> None:
        """Answer a function call of this session. Unknown and cancelled ids are ignored."""

    def close(self) -> None: ...


class VoiceEngine(Protocol):
    """A speech-to-speech service or a local pipeline. Opens one session per connection."""

    name: str
    """As it is called in VOICE_ENGINE, metrics and /health."""

    has_llm: bool
    """Whether it brings a language model, so that agents need none of their own."""

    def own_model(self, agent: Agent) -> ModelName | None:
        """The model that it runs for this agent; None if the agent's own language model answers."""

    async def connect(self, load_settings: LoadSettings, events: EngineEvents) -> EngineSession:
        """
        Open a session and send it its settings; `SettingsApplied` follows.

        `load_settings` is called once the connection is open, so that memory loads during the handshake. It may take
        until the phone is answered: a session binds `recorder` and `on_agent_audio` of `events` after that. When this
        is cancelled, the connection closes. Raises EngineUnavailable, or EngineRefused where another attempt would
        fail in the same way.
        """
        ...

    @property
    def is_ready(self) -> bool:
        """False while it starts."""

    async def probe(self) -> str:
        """
        Check for `gateway doctor` that calls can be taken. Returns what was found.

        Raises GatewayError, with what to correct.
        """
        ...

    def health(self) -> dict[str, str]:
        """Fields for /health."""

    async def run(self) -> None:
        """Background work for all sessions, until cancelled. May return at once."""


SET_UP_ENGINE: Final = f"set DEEPGRAM_API_KEY, OPENAI_API_KEY or XAI_API_KEY, or run: {how_to_install('local')}"
"""What to do where no engine is set up."""


class NoEngine:
    """Where no engine is set up. Calls are refused before they reach it."""

    name = "not set up"
    has_llm = True
    is_ready = True

    def own_model(self, agent: Agent) -> ModelName | None:
        return None

    async def connect(self, load_settings: LoadSettings, events: EngineEvents) -> EngineSession:
        raise EngineRefused("no voice engine is set up")

    async def probe(self) -> str:
        raise EngineRefused(f"no voice engine, so calls are rejected; {SET_UP_ENGINE}")

    def health(self) -> dict[str, str]:
        return {"engine": self.name}

    async def run(self) -> None: ...
