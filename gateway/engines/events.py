"""What a voice engine can tell us, whichever engine it is. Frozen, named by what happened."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineGreeted:
    """The engine took the connection and waits for its settings."""

    request_id: str


@dataclass(frozen=True, slots=True)
class SettingsApplied:
    """The engine is ready for audio."""


@dataclass(frozen=True, slots=True)
class UserStartedSpeaking:
    """The caller began to speak: what the agent was saying is void."""


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The engine holds the caller's turn for complete; its text is near."""


@dataclass(frozen=True, slots=True)
class UserSaid:
    """One whole turn of the caller, final."""

    text: str


@dataclass(frozen=True, slots=True)
class AgentSaid:
    """A piece of the agent's answer, usually one sentence, about when its sound begins."""

    text: str


@dataclass(frozen=True, slots=True)
class AgentAudioReceived:
    """Sound of the agent: mu-law, 8000 Hz, any length."""

    audio: bytes


@dataclass(frozen=True, slots=True)
class AgentAudioDone:
    """The last sound of this answer was sent; the caller still hears what is queued."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One function the agent wants run. `arguments` is JSON text, maybe empty."""

    id: str
    name: str
    arguments: str
    thought_signature: str = ""
    """Of some models, and theirs alone: given back to them with the call."""


@dataclass(frozen=True, slots=True)
class FunctionsRequested:
    """The agent waits for the result of each."""

    calls: tuple[FunctionCall, ...]


@dataclass(frozen=True, slots=True)
class FunctionsCancelled:
    """The agent guessed wrong and does not want these results any more."""

    call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PromptUpdated:
    """Text we added to the prompt in mid-call is in force."""


@dataclass(frozen=True, slots=True)
class InjectionRefused:
    """What we wanted said was not said: somebody was speaking."""


@dataclass(frozen=True, slots=True)
class LatencyReported:
    """The engine's own measure of its stages, in seconds."""

    stages: dict[str, float]


@dataclass(frozen=True, slots=True)
class EngineWarned:
    """Something is not as it should be; the conversation goes on."""

    code: str


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """The engine gives up on this connection. `retryable`: a new one may work."""

    code: str
    retryable: bool


EngineEvent = (
    EngineGreeted
    | SettingsApplied
    | UserStartedSpeaking
    | TurnEnded
    | UserSaid
    | AgentSaid
    | AgentAudioReceived
    | AgentAudioDone
    | FunctionsRequested
    | FunctionsCancelled
    | PromptUpdated
    | InjectionRefused
    | LatencyReported
    | EngineWarned
    | EngineFailed
)
