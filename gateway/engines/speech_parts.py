"""
The parts of the cascade engine: a recogniser and a voice, each of them exchangeable.

A service opens one stream per call. Streams report to the call's session through a listener. Audio is mu-law, 8000 Hz.
"""

from collections.abc import Sequence
from typing import Protocol

from gateway.engines.interface import Patience, WordEnd


class RecogniserListener(Protocol):
    """Receives what a recogniser reports. Called on the event loop; every method returns at once."""

    def on_speech_started(self) -> None: ...
    def on_speech_ended(self, text: str) -> None:
        """The caller's turn is complete. `text` is empty where no words were recognised."""

    def on_speech_failed(self, problem: str, *, retryable: bool = True) -> None:
        """The stream ended and could not be replaced. `retryable`: a new session may work."""


class VoiceListener(Protocol):
    """Receives what a voice reports, as a `RecogniserListener`."""

    def on_audio(self, number: int, audio: bytes) -> None:
        """Audio of the text with this number."""

    def on_word_ends(self, number: int, ends: Sequence[WordEnd]) -> None:
        """Where the next words of this text end in its audio, for voices that report it. Before their audio."""

    def on_spoken(self, number: int) -> None:
        """The audio of this text is complete."""

    def on_speech_failed(self, problem: str, *, retryable: bool = True) -> None: ...


class SpeechListener(RecogniserListener, VoiceListener, Protocol):
    """A session, seen from its recogniser and its voice."""


class RecogniserStream(Protocol):
    """The recognition of one call. Every method returns at once."""

    @property
    def buffered_bytes(self) -> int:
        """Audio that the recogniser has not taken yet."""

    def send_audio(self, audio: bytes) -> None: ...
    def set_keyterms(self, terms: Sequence[str]) -> None:
        """Names that the caller may say. A recogniser that can't be given any ignores them."""

    def set_patience(self, patience: Patience) -> None:
        """How long a pause may be from now on. A recogniser that can't be set ignores it."""

    def end_turn(self) -> None:
        """Treat the caller's turn as complete."""

    def close(self) -> None: ...


class VoiceStream(Protocol):
    """The speech synthesis of one call. Every method returns at once."""

    def say(self, text: str) -> int:
        """Synthesize this. Returns the number under which it is reported, higher than any before."""

    def cancel_speech(self) -> None:
        """Cancel everything that `say` was called with so far. Nothing more of it is reported."""

    def close(self) -> None: ...


class SpeechService(Protocol):
    """What recogniser and voice services have in common."""

    @property
    def name(self) -> str:
        """As an agent's `engine` names it, such as deepgram/nova-3."""

    @property
    def is_ready(self) -> bool:
        """False while it starts."""

    @property
    def is_full(self) -> bool:
        """Whether a further call would be one too many."""

    async def probe(self) -> str:
        """Check for `gateway doctor`. Raises GatewayError, with what to correct."""
        ...

    def health(self) -> dict[str, str]:
        """Fields for /health."""

    async def run(self) -> None:
        """Background work, until cancelled. May return at once."""


class RecogniserService(SpeechService, Protocol):
    @property
    def hearing(self) -> str:
        """What the agent has to know about its hearing, for its instructions."""

    async def open_recogniser(self, listener: SpeechListener) -> RecogniserStream:
        """Raises EngineUnavailable or EngineRefused."""
        ...


class VoiceService(SpeechService, Protocol):
    async def open_voice(self, listener: SpeechListener) -> VoiceStream:
        """Raises EngineUnavailable or EngineRefused."""
        ...
