"""
ElevenLabs' voices, without I/O: the socket multi-stream-input with mu-law and the times of characters.

Each text has a context of its own, so that its end is known and an interrupted one can be left behind. A socket accepts
five contexts at a time, including those whose last audio is still being generated.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, urlencode

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

DEFAULT_MODEL: Final = "eleven_flash_v2_5"
MAX_CONTEXTS: Final = 5
_WANTED_CONTEXTS: Final = 2
_IDLE_SECONDS: Final = 180
"""How long ElevenLabs keeps a socket without messages; the longest that it accepts. Then another one is opened."""
_NAME: Final = "elevenlabs"
_FINAL_ERRORS: Final = frozenset(
    {"invalid_api_key", "missing_permissions", "quota_exceeded", "voice_not_found", "model_not_found"}
)
_NEAR: Final = 8
"""How far ahead a character of the alignment is looked for in the text, which is normalised in places."""


def speak_path(voice: str, model: str, language: str) -> str:
    query = {
        "model_id": model,
        "output_format": "ulaw_8000",
        "auto_mode": "true",
        "sync_alignment": "true",
        "inactivity_timeout": str(_IDLE_SECONDS),
    }
    if language != "en":
        query["language_code"] = language
    return f"/v1/text-to-speech/{quote(voice, safe='')}/multi-stream-input?{urlencode(query)}"


class ElevenLabsCodec:
    """The messages of one socket."""

    def __init__(self) -> None:
        self._texts = TextWindow(_WANTED_CONTEXTS, MAX_CONTEXTS)
        self._positions: dict[int, tuple[int, int]] = {}
        """By number: characters whose time is known, and bytes of audio so far."""

    def say(self, number: int, text: str) -> list[bytes]:
        self._texts.add(number, text)
        return self.tick()

    def tick(self) -> list[bytes]:
        frames: list[bytes] = []
        for number, text in self._texts.next():
            context = {"context_id": str(number)}
            # A context begins with a blank. One that is closed after a flush is spoken to its end.
            frames.append(orjson.dumps({"text": " ", **context}))
            frames.append(orjson.dumps({"text": f"{text} ", **context, "flush": True}))
            frames.append(orjson.dumps({**context, "close_context": True}))
        return frames

    def cancel(self, numbers: Sequence[int]) -> list[bytes]:
        """Contexts are closed already: their audio ends by itself."""
        self._texts.cancel()
        return []

    def receive(self, frame: bytes) -> list[VoiceEvent]:
        message = parse_message(_NAME, frame)
        if message.get("error"):
            code = str(message["error"])
            return [ServiceFailed(code, retryable=code not in _FINAL_ERRORS)]
        context = message.get("contextId") or message.get("context_id")  # both are in use
        if not isinstance(context, str) or not context.isdecimal():
            return []
        number = int(context)
        events: list[VoiceEvent] = []
        if audio := decode_audio(_NAME, message.get("audio")):
            if ends := self._word_ends(number, message):
                events.append(VoiceWords(number, ends))
            characters, size = self._positions.get(number, (0, 0))
            self._positions[number] = (characters, size + len(audio))
            events.append(VoiceAudio(number, audio))
        if message.get("isFinal") or message.get("is_final"):
            self._texts.done(number)
            self._positions.pop(number, None)
            events.append(VoiceDone(number))
        return events

    def receive_binary(self, audio: bytes) -> list[VoiceEvent]:
        return []

    def _word_ends(self, number: int, message: Mapping[str, Any]) -> tuple[WordEnd, ...]:
        """Words that end in this chunk. Times count from its beginning."""
        text = self._texts.text(number)
        at, before = self._positions.get(number, (0, 0))
        ends = []
        for character, end_ms in _times(message.get("alignment")):
            found = text.find(character, at, at + _NEAR) if character.strip() else -1
            if found < 0:
                continue
            at = found + len(character)
            if not text[at : at + 1].strip():
                ends.append(WordEnd(at, before + end_ms * BYTES_PER_SECOND // 1000))
        self._positions[number] = (at, before)
        return tuple(ends)


def _times(alignment: Any) -> list[tuple[str, int]]:
    """Each character with its end in milliseconds."""
    if not isinstance(alignment, dict):
        return []
    columns = [alignment.get(name) for name in ("chars", "charStartTimesMs", "charDurationsMs")]
    if not all(isinstance(column, list) for column in columns) or len({len(column or ()) for column in columns}) != 1:
        return []
    return [
        (character, int(start + duration))
        for character, start, duration in zip(*columns, strict=True)
        if isinstance(character, str)
        and isinstance(start, int | float)
        and isinstance(duration, int | float)
        and 0 <= start + duration < LONGEST_TEXT * 1000
    ]
