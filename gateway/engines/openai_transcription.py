"""
OpenAI's realtime transcription, without I/O: a session of type transcription with mu-law and server VAD.

A text belongs to a committed item and may come late, or after the next speech has begun: then both are one turn.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from gateway.engines.interface import Patience
from gateway.engines.streaming import RecogniserEvent, ServiceFailed, TurnBegan, TurnRecognised, parse_message

WITHOUT_TURNS: Final = frozenset({"gpt-live-transcribe", "gpt-realtime-whisper"})
"""Models that work without turn detection only."""
_WITH_KEYWORDS: Final = frozenset({"gpt-transcribe"})
_NAME: Final = "openai"
_FORMAT: Final = "audio/pcmu"
_SILENCE_MS: Final[dict[Patience, int]] = {"short": 350, "normal": 500, "long": 900, "dictation": 1500}
"""Silence that ends a turn, by the agent's patience."""
_FINAL_ERRORS: Final = frozenset({"invalid_api_key", "insufficient_quota", "model_not_found", "invalid_model"})
_TRANSCRIPTION: Final = "conversation.item.input_audio_transcription"


class OpenAiTranscriptionCodec:
    """The messages of one socket."""

    audio_is_binary = False

    def __init__(self, model: str, language: str, patience: Patience) -> None:
        self._silence_ms = _SILENCE_MS[patience]
        self._transcription: dict[str, Any] = {"model": model, "language": language}
        self._speaking = False
        self._items: dict[str, str | None] = {}
        """Committed items of this turn in order, with their text once it is known."""
        self._is_open = False

    @property
    def is_text_due(self) -> bool:
        return self._is_open and not self._speaking

    def opening(self, keyterms: Sequence[str]) -> list[bytes]:
        if keyterms and self._transcription["model"] in _WITH_KEYWORDS:
            self._transcription["keywords"] = list(keyterms)
        detection = {"type": "server_vad", "silence_duration_ms": self._silence_ms}
        audio = {"format": {"type": _FORMAT}, "transcription": self._transcription, "turn_detection": detection}
        session = {"type": "transcription", "audio": {"input": audio}}
        return [orjson.dumps({"type": "session.update", "session": session})]

    def keyterms(self, terms: Sequence[str]) -> list[bytes]:
        return self.opening(terms) if self._transcription["model"] in _WITH_KEYWORDS else []

    def patience(self, patience: Patience) -> list[bytes]:
        self._silence_ms = _SILENCE_MS[patience]
        return self.opening(self._transcription.get("keywords", ()))

    def audio(self, audio: bytes) -> bytes:
        return b'{"type":"input_audio_buffer.append","audio":"' + base64.b64encode(audio) + b'"}'

    def end_turn(self) -> bytes:
        self._speaking = False
        return b'{"type":"input_audio_buffer.commit"}'

    def receive(self, frame: bytes) -> list[RecogniserEvent]:
        message = parse_message(_NAME, frame)
        item = str(message.get("item_id", ""))
        match message.get("type"):
            case "input_audio_buffer.speech_started":
                self._speaking = self._is_open = True
                return [TurnBegan()]
            case "input_audio_buffer.speech_stopped":
                self._speaking = False
                return []
            case "input_audio_buffer.committed":
                self._items.setdefault(item, None)
                return []
            case kind if kind in (f"{_TRANSCRIPTION}.completed", f"{_TRANSCRIPTION}.failed"):
                text = message.get("transcript")
                self._items[item] = text.replace("\0", "").strip() if isinstance(text, str) else ""
                return self._end()
            case "session.updated" if _format(message) != _FORMAT:
                return [ServiceFailed(f"{_FORMAT} was not accepted", retryable=False)]
            case "error":
                return _failure(message.get("error"))
            case _:
                return []

    def _end(self) -> list[RecogniserEvent]:
        if self._speaking or None in self._items.values():
            return []
        text = " ".join(filter(None, self._items.values()))
        self._items, self._is_open = {}, False
        return [TurnRecognised(text)]


def _format(message: Mapping[str, Any]) -> Any:
    match message.get("session"):
        case {"audio": {"input": {"format": {"type": found}}}}:
            return found
        case _:
            return None


def _failure(error: Any) -> list[RecogniserEvent]:
    """Errors about one message do not end a session."""
    fields = error if isinstance(error, dict) else {}
    code, kind = str(fields.get("code") or ""), str(fields.get("type") or "")
    if code in _FINAL_ERRORS:
        return [ServiceFailed(code, retryable=False)]
    return [] if kind == "invalid_request_error" else [ServiceFailed(code or kind or "error")]
