"""
Deepgram's speech sockets, without I/O: the recognisers Nova (/v1/listen) and Flux (/v2/listen), and the voices Aura
(/v1/speak) and Flux (/v2/speak).

Nova reports pauses, Flux whole turns. Aura speaks what was flushed, and accepts 20 flushes a minute.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final
from urllib.parse import urlencode

import orjson

from gateway.engines.deepgram_codec import FLUX_PATIENCE
from gateway.engines.interface import Patience
from gateway.engines.streaming import (
    RecogniserEvent,
    ServiceFailed,
    TextWindow,
    TurnBegan,
    TurnRecognised,
    VoiceAudio,
    VoiceDone,
    VoiceEvent,
    parse_message,
)

_NAME: Final = "deepgram"
_AUDIO: Final = {"encoding": "mulaw", "sample_rate": "8000"}
_ENDPOINTING_MS: Final = {"short": 300, "normal": 400, "long": 800}
"""Silence after which Nova ends a turn, by the agent's patience. Deepgram recommends 300 to 500 for conversations."""
_UTTERANCE_END_MS: Final = 1000
"""Ends a turn by the gap between words where noise hides the silence. The shortest that Deepgram accepts."""
_WORDLESS_SECONDS: Final = 1.5
"""Speech that Nova's voice activity detector reported and that has no words by then was noise."""
MAX_FLUSHES: Final = 20
FLUSH_WINDOW: Final = 60.0
"""Deepgram ignores further flushes within so many seconds."""
SINGLE_FLUSHES: Final = 12
"""With so many flushes in the window, sentences that wait are flushed together."""


def listen_path(model: str, language: str, patience: Patience) -> str:
    """The path and query of the recogniser's socket."""
    if is_flux(model):
        threshold, timeout = FLUX_PATIENCE[patience]
        hints = {"language_hint": language} if model == "flux-general-multi" else {}
        turns = {"eot_threshold": str(threshold), "eot_timeout_ms": str(timeout)}
        return f"/v2/listen?{urlencode({'model': model, **_AUDIO, **turns, **hints})}"
    query = {
        "model": model,
        "language": language,
        **_AUDIO,
        "channels": "1",
        "punctuate": "true",
        "interim_results": "true",
        "vad_events": "true",
        "endpointing": str(_ENDPOINTING_MS[patience]),
        "utterance_end_ms": str(_UTTERANCE_END_MS),
    }
    return f"/v1/listen?{urlencode(query)}"


def speak_path(voice: str) -> str:
    return f"/{'v2' if is_flux(voice) else 'v1'}/speak?{urlencode({'model': voice, **_AUDIO})}"


def is_flux(model: str) -> bool:
    return model.startswith("flux-")


class _ListenCodec:
    """What Nova and Flux have in common."""

    audio_is_binary = True
    is_text_due = False

    def opening(self, keyterms: Sequence[str]) -> list[bytes]:
        return self.keyterms(keyterms) if keyterms else []

    def keyterms(self, terms: Sequence[str]) -> list[bytes]:
        return [orjson.dumps({"type": "Configure", "keyterms": list(terms)})]

    def patience(self, patience: Patience) -> list[bytes]:
        """Nova's silence is part of its address, and can't be changed."""
        return []

    def audio(self, audio: bytes) -> bytes:
        return audio


class NovaCodec(_ListenCodec):
    """
    /v1/listen.

    A turn ends with the first pause. Speech may be reported by the voice activity detector without any words, words
    without such a report, and a report may come after the words.
    """

    def __init__(self, *, takes_keyterms: bool) -> None:
        self._takes_keyterms = takes_keyterms
        self._finals: list[str] = []
        self._began_at: float | None = None
        self._ended_at = 0.0

    def keyterms(self, terms: Sequence[str]) -> list[bytes]:
        """Only Nova 3 accepts them."""
        return super().keyterms(terms) if self._takes_keyterms else []

    def end_turn(self) -> bytes:
        return b'{"type":"Finalize"}'

    def receive(self, frame: bytes) -> list[RecogniserEvent]:
        message = parse_message(_NAME, frame)
        match message.get("type"):
            case "SpeechStarted" if self._began_at is None and (at := _seconds(message, "timestamp")) >= self._ended_at:
                self._began_at = at
                return [TurnBegan()]
            case "Results":
                return self._results(message)
            case "UtteranceEnd" if self._began_at is not None:
                return self._end(_seconds(message, "last_word_end"))
            case "Error":
                return [ServiceFailed(str(message.get("variant") or message.get("code") or "error"))]
            case _:
                return []

    def _results(self, message: Mapping[str, Any]) -> list[RecogniserEvent]:
        start = _seconds(message, "start")
        end = start + _seconds(message, "duration")
        text, is_final = _transcript(message), message.get("is_final") is True
        events: list[RecogniserEvent] = []
        if text and self._began_at is None:
            self._began_at = start
            events.append(TurnBegan())
        if text and is_final:
            self._finals.append(text)
        if self._began_at is None:
            return events
        is_pause = message.get("speech_final") is True or message.get("from_finalize") is True
        is_noise = is_final and not self._finals and end - self._began_at >= _WORDLESS_SECONDS
        return [*events, *self._end(end)] if is_pause or is_noise else events

    def _end(self, at: float) -> list[RecogniserEvent]:
        text = " ".join(self._finals)
        self._finals, self._began_at, self._ended_at = [], None, at
        return [TurnRecognised(text)]


class FluxCodec(_ListenCodec):
    """/v2/listen. Flux decides itself where a turn ends."""

    def patience(self, patience: Patience) -> list[bytes]:
        threshold, timeout = FLUX_PATIENCE[patience]
        thresholds = {"eot_threshold": threshold, "eot_timeout_ms": timeout}
        return [orjson.dumps({"type": "Configure", "thresholds": thresholds})]

    def end_turn(self) -> bytes:
        return b'{"type":"ForceEndTurn"}'

    def receive(self, frame: bytes) -> list[RecogniserEvent]:
        message = parse_message(_NAME, frame)
        match message.get("type"), message.get("event"):
            case "TurnInfo", "StartOfTurn":
                return [TurnBegan()]
            case "TurnInfo", "EndOfTurn":
                return [TurnRecognised(_text(message.get("transcript")))]
            case "Error", _:
                return [ServiceFailed(str(message.get("code") or "error"))]
            case _:
                return []


class AuraCodec:
    """
    /v1/speak. Audio has no number: it belongs to the texts that were flushed first.

    Each sentence is flushed alone while few flushes were needed lately, so that it is known where it begins. After a
    Clear, everything that arrives before Cleared is of the old texts.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._waiting: list[tuple[int, str]] = []
        self._flushed: deque[list[int]] = deque()
        """Numbers of the texts of each flush that is not confirmed."""
        self._flushes: deque[float] = deque(maxlen=MAX_FLUSHES)
        self._clears = 0

    def say(self, number: int, text: str) -> list[bytes]:
        self._waiting.append((number, text))
        return self.tick()

    def cancel(self, numbers: Sequence[int]) -> list[bytes]:
        self._waiting.clear()
        if not self._flushed:
            return []
        self._flushed.clear()
        self._clears += 1
        return [b'{"type":"Clear"}']

    def tick(self) -> list[bytes]:
        """Flush what waits: each text alone, or all together when flushes become scarce."""
        frames: list[bytes] = []
        while self._waiting:
            now = self._clock()
            recent = sum(now - at < FLUSH_WINDOW for at in self._flushes)
            if recent >= MAX_FLUSHES or (recent >= SINGLE_FLUSHES and self._flushed):
                break  # the next chance is when a flush is done
            several = len(self._waiting) if recent >= SINGLE_FLUSHES else 1
            group, self._waiting = self._waiting[:several], self._waiting[several:]
            frames += [orjson.dumps({"type": "Speak", "text": f"{text} "}) for _, text in group]
            frames.append(b'{"type":"Flush"}')
            self._flushed.append([number for number, _ in group])
            self._flushes.append(now)
        return frames

    def receive(self, frame: bytes) -> list[VoiceEvent]:
        message = parse_message(_NAME, frame)
        match message.get("type"):
            case "Flushed" if self._flushed and not self._clears:
                return [VoiceDone(number) for number in self._flushed.popleft()]
            case "Cleared":
                self._clears = max(self._clears - 1, 0)
            case "Error":
                return [ServiceFailed(str(message.get("code") or message.get("err_code") or "error"))]
        return []

    def receive_binary(self, audio: bytes) -> list[VoiceEvent]:
        if not self._flushed or self._clears:
            return []
        *before, number = self._flushed[0]
        self._flushed[0] = [number]
        return [*(VoiceDone(earlier) for earlier in before), VoiceAudio(number, audio)]


class FluxVoiceCodec:
    """
    /v2/speak. Each text is a turn, one at a time: its audio comes before its SpeechMetadata.

    A cancelled text is spoken to its end, and its audio dropped. It is one sentence, and made faster than it is spoken.
    """

    def __init__(self) -> None:
        self._texts = TextWindow(1, 1)
        self._number: int | None = None

    def say(self, number: int, text: str) -> list[bytes]:
        self._texts.add(number, text)
        return self.tick()

    def cancel(self, numbers: Sequence[int]) -> list[bytes]:
        self._texts.cancel()
        return []

    def tick(self) -> list[bytes]:
        frames: list[bytes] = []
        for number, text in self._texts.next():
            self._number = number
            frames += [orjson.dumps({"type": "Speak", "text": text}), b'{"type":"Flush"}']
        return frames

    def receive(self, frame: bytes) -> list[VoiceEvent]:
        message = parse_message(_NAME, frame)
        match message.get("type"):
            case "SpeechMetadata" if (number := self._number) is not None:
                self._number = None
                self._texts.done(number)
                return [VoiceDone(number)]
            case "Error":
                return [ServiceFailed(str(message.get("code") or "error"))]
            case _:
                return []

    def receive_binary(self, audio: bytes) -> list[VoiceEvent]:
        return [VoiceAudio(self._number, audio)] if self._number is not None else []


def _transcript(message: Mapping[str, Any]) -> str:
    match message.get("channel"):
        case {"alternatives": [{"transcript": text}, *_]}:
            return _text(text)
        case _:
            return ""


def _text(value: Any) -> str:
    return value.replace("\0", "").strip() if isinstance(value, str) else ""


def _seconds(message: Mapping[str, Any], name: str) -> float:
    value = message.get(name)
    return float(value) if isinstance(value, int | float) else 0.0
