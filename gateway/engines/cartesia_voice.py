"""Cartesia's voices, without I/O: the TTS socket with raw mu-law and the times of words. Each text is a context."""

import uuid
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlencode

import orjson

from gateway.audio import BYTES_PER_SECOND
from gateway.engines.interface import WordEnd
from gateway.engines.streaming import (
    LONGEST_TEXT,
    ServiceFailed,
    TextWindow,
    VoiceAudio,
    VoiceDone,
    VoiceEvent,
    VoiceWords,
    decode_audio,
    parse_message,
)

DEFAULT_MODEL: Final = "sonic-3.5"
VERSION: Final = "2026-08-14"
"""Of the API: that of the official SDK 4.2."""
_NAME: Final = "cartesia"
_WANTED_CONTEXTS: Final = 2
_MAX_CONTEXTS: Final = 10


def speak_path() -> str:
    return f"/tts/websocket?{urlencode({'cartesia_version': VERSION})}"


class CartesiaCodec:
    """The messages of one socket."""

    def __init__(self, voice: str, model: str, language: str) -> None:
        self._request = {
            "model_id": model,
            "voice": {"mode": "id", "id": voice},
            "language": language,
            "output_format": {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8000},
            "add_timestamps": True,
            "continue": False,
        }
        self._prefix = uuid.uuid4().hex
        self._texts = TextWindow(_WANTED_CONTEXTS, _MAX_CONTEXTS)
        self._timed: dict[int, int] = {}
        """By number: characters whose time is known."""

    def say(self, number: int, text: str) -> list[bytes]:
        self._texts.add(number, text)
        return self.tick()

    def tick(self) -> list[bytes]:
        return [
            orjson.dumps({**self._request, "transcript": text, "context_id": f"{self._prefix}-{number}"})
            for number, text in self._texts.next()
        ]

    def cancel(self, numbers: Sequence[int]) -> list[bytes]:
        return [
            orjson.dumps({"context_id": f"{self._prefix}-{number}", "cancel": True}) for number in self._texts.cancel()
        ]

    def receive(self, frame: bytes) -> list[VoiceEvent]:
        message = parse_message(_NAME, frame)
        prefix, _, context = str(message.get("context_id", "")).rpartition("-")
        is_ours = prefix == self._prefix and context.isdecimal()
        number = int(context) if is_ours else 0
        match message.get("type"):
            case "chunk" if is_ours and (audio := decode_audio(_NAME, message.get("data"))):
                return [VoiceAudio(number, audio)]
            case "timestamps" if is_ours and (ends := self._word_ends(number, message.get("word_timestamps"))):
                return [VoiceWords(number, ends)]
            case "done" if is_ours:
                self._texts.done(number)
                self._timed.pop(number, None)
                return [VoiceDone(number)]
            case "error":
                status = message.get("status_code")
                is_final = isinstance(status, int) and 400 <= status < 500 and status != 429
                return [ServiceFailed(str(message.get("error_code") or status or "error"), retryable=not is_final)]
            case _:
                return []

    def receive_binary(self, audio: bytes) -> list[VoiceEvent]:
        return []

    def _word_ends(self, number: int, times: Any) -> tuple[WordEnd, ...]:
        """Times count from the beginning of the context."""
        if not isinstance(times, dict) or not all(isinstance(times.get(name), list) for name in ("words", "end")):
            return ()
        text, at = self._texts.text(number), self._timed.get(number, 0)
        ends = []
        for word, seconds in zip(times["words"], times["end"], strict=False):
            found = text.find(word, at) if isinstance(word, str) and word else -1
            if found < 0 or not isinstance(seconds, int | float) or not 0 <= seconds < LONGEST_TEXT:
                continue
            at = found + len(word)
            while text[at : at + 1].strip():  # punctuation that is not part of the word
                at += 1
            ends.append(WordEnd(at, round(seconds * BYTES_PER_SECOND)))
        self._timed[number] = at
        return tuple(ends)
