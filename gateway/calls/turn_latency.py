"""
The latency of each answer, stage by stage. No clock: times are given.

Stages are measured from the end of the caller's speech as the engine detects it. Stages inside the engine are derived
from its own figures, counted back from the first audio.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from gateway.metrics import TURN_STAGE_SECONDS

_DIGITS: Final = 4  # a tenth of a millisecond


@dataclass(frozen=True)
class TurnLatency:
    """
    Seconds from the end of the caller's speech to each stage; None if not reached or not known.

    The language model may be asked before the end of the turn is certain: then its seconds are negative.
    """

    transcript: float | None = None
    llm_request: float | None = None
    first_token: float | None = None
    first_audio: float | None = None
    """The engine's first audio arrived."""
    first_frame: float | None = None
    """It was sent to the carrier."""

    def as_json(self) -> dict[str, float | None]:
        return {stage: getattr(self, stage) for stage in _STAGES}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "TurnLatency":
        return cls(**{stage: stored.get(stage) for stage in _STAGES})


_STAGES: Final = tuple(field.name for field in fields(TurnLatency))


def observe(engine: str, timing: TurnLatency) -> None:
    """Add one turn to the metrics."""
    for stage, seconds in timing.as_json().items():
        if seconds is not None:
            TURN_STAGE_SECONDS.labels(stage, engine).observe(max(seconds, 0.0))  # a histogram's sum must not fall


# The engine's figures, each with the stage at its end.
_LEADS_TO: Final = {"stt": "transcript", "ttt": "first_audio", "tts": "first_audio"}


class TurnLatencyTracker:
    """
    Measures one turn after another.

    `on_turn` gets each finished turn. `on_answer` is called when the first audio of an answer was sent, with the
    stages so far as JSON, or None for a greeting. Of each stage the first time counts. A turn needs a transcript:
    a caller who only coughed has not taken one.
    """

    def __init__(
        self,
        on_turn: Callable[[TurnLatency], None],
        *,
        on_answer: Callable[[dict[str, float | None] | None], None] = lambda _: None,
    ) -> None:
        self.finished: list[TurnLatency] = []
        self._on_turn = on_turn
        self._on_answer = on_answer
        self._seen: dict[str, float] = {}
        self._reported: dict[str, float] = {}

    def finish_turn(self) -> None:
        """The caller began to speak, or the call is over. May be repeated."""
        timing = self._timing() if "transcript" in self._seen else None
        self._seen, self._reported = {}, {}
        if timing is not None:
            self.finished.append(timing)
            self._on_turn(timing)

    # Stages

    def speech_ended(self, at: float) -> None:
        if "transcript" not in self._seen:
            self._seen.setdefault("speech_ended", at)

    def transcript(self, at: float) -> None:
        """The turn's text. A second text without speech in between is a turn of its own."""
        if "transcript" in self._seen:
            self.finish_turn()
        self._seen["transcript"] = at

    def llm_request(self, at: float) -> None:
        self._seen.setdefault("llm_request", at)

    def first_token(self, at: float) -> None:
        self._seen.setdefault("first_token", at)

    def first_audio(self, at: float) -> None:
        self._seen.setdefault("first_audio", at)

    def first_frame(self, at: float) -> None:
        if "first_frame" not in self._seen:
            self._seen["first_frame"] = at
            self._on_answer(self._timing().as_json() if "transcript" in self._seen else None)

    def reported(self, *, stt: float | None = None, ttt: float | None = None, tts: float | None = None) -> None:
        """
        The engine's figures: audio to text, request to first token, first token to first audio.

        Reports repeat, even in silence, and do not name a turn. The last figure before its stage counts, else the
        first one after it.
        """
        for figure, seconds in (("stt", stt), ("ttt", ttt), ("tts", tts)):
            settled = figure in self._reported and _LEADS_TO[figure] in self._seen
            if seconds is not None and not settled:
                self._reported[figure] = seconds

    def _timing(self) -> TurnLatency:
        """From observed times, and those derived from the engine's figures."""
        at = dict(self._seen)
        for unseen, known, figure in (
            ("speech_ended", "transcript", "stt"),
            ("first_token", "first_audio", "tts"),
            ("llm_request", "first_token", "ttt"),
        ):
            if known in at and figure in self._reported:
                at.setdefault(unseen, at[known] - self._reported[figure])
        ended = at.get("speech_ended", at["transcript"])
        seconds = {stage: round(at[stage] - ended, _DIGITS) for stage in _STAGES if stage in at}
        if "speech_ended" not in at:
            del seconds["transcript"]  # used as the end of speech
        return TurnLatency(**seconds)
