"""
Response time: from the caller's last voiced frame to the first frame of the answer sent to the carrier.

The gateway measures both in the audio, so the figure means the same with every engine. It contains everything between:
the silence in which the engine decides that the caller has finished, the transcript, the language model and the voice.
A filler is not an answer, nor are an operator's words, nor `one_moment`, which is said when the language model is slow.
A greeting answers nothing and has no response time.

Every page, command and metric shows this figure. Where no voiced frame was found, as on a very noisy line, the same
interval is counted from a later event, and `CountedFrom` says which.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

SLOW_SECONDS: Final = 2.0
"""A response time that callers notice."""

STAGE_NAMES: Final = {
    "speech_ended": "end of turn detected",
    "transcript": "transcript",
    "llm_request": "LLM request",
    "first_token": "first token",
    "first_audio": "first audio",
    "first_frame": "first frame sent",
}
"""The stages of an answer. The last one is the response time."""
STAGES: Final = tuple(STAGE_NAMES)


class CountedFrom(enum.StrEnum):
    """Where the time begins."""

    VOICE = "voice"
    """The caller's last voiced frame."""
    ENGINE = "engine"
    """The engine's report that the caller has finished. Also for calls of versions that did not store it."""
    TRANSCRIPT = "transcript"

    @property
    def note(self) -> str:
        """The note to show beside a time that is not counted from the voice; else empty."""
        match self:
            case CountedFrom.VOICE:
                return ""
            case CountedFrom.ENGINE:
                return "from the engine's end of turn"
            case CountedFrom.TRANSCRIPT:
                return "from the transcript"


@dataclass(frozen=True)
class ResponseTime:
    """
    Seconds from `counted_from` to each stage of one answer; None if not reached or not known.

    The language model may be asked before the caller has finished: then its seconds are negative.
    """

    speech_ended: float | None = None
    """The engine reported that the caller has finished."""
    transcript: float | None = None
    llm_request: float | None = None
    first_token: float | None = None
    """The first text of the answer: a function call is none."""
    first_audio: float | None = None
    """The engine's first audio arrived."""
    first_frame: float | None = None
    """It was sent to the carrier: the response time."""
    counted_from: CountedFrom = CountedFrom.VOICE

    @property
    def steps(self) -> list[tuple[str, float]]:
        """The time that each stage added, in the order reached. They add up to the response time."""
        if self.first_frame is None:
            return []
        stages = {stage: seconds for stage in STAGES if (seconds := getattr(self, stage)) is not None}
        reached = {stage: max(seconds, 0.0) for stage, seconds in stages.items() if seconds <= self.first_frame}
        steps, before = [], 0.0
        for stage, seconds in sorted(reached.items(), key=lambda item: item[1]):
            steps.append((STAGE_NAMES[stage], seconds - before))
            before = seconds
        return steps

    def as_json(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "ResponseTime":
        """Times that an earlier version stored were counted from the engine's report."""
        counted_from = CountedFrom(stored.get("counted_from") or CountedFrom.ENGINE)
        return cls(**{stage: stored.get(stage) for stage in STAGES}, counted_from=counted_from)
