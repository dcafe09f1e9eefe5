"""
How long each turn's answer took, stage by stage, as far as we see it or the engine tells. No clock: times are given.

Stages are counted from the end of the caller's speech as the engine judges it. What we can't see of a model that the
engine runs itself is counted back from the first sound, by the engine's own figures.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

from gateway.metrics import TURN_STAGE_SECONDS

_DIGITS: Final = 4  # a tenth of a millisecond


@dataclass(frozen=True)
class TurnLatency:
    """
    Seconds from the end of the caller's speech to each stage; None for one that was not reached or is not known.

    The model may be asked before the end of the turn is certain: then the seconds to it are negative.
    """

    transcript: float | None = None
    llm_request: float | None = None
    first_token: float | None = None
    first_audio: float | None = None
    """The engine's first sound reached us."""
    first_frame: float | None = None
    """It left for the carrier."""

    def as_json(self) -> dict[str, float | None]:
        return {stage: getattr(self, stage) for stage in _STAGES}

    @classmethod
    def from_json(cls, stored: Mapping[str, Any]) -> "TurnLatency":
        return cls(**{stage: stored.get(stage) for stage in _STAGES})


_STAGES: Final = tuple(field.name for field in fields(TurnLatency))


def observe(engine: str, timing: TurnLatency) -> None:
    """Count one turn in the metrics."""
    for stage, seconds in timing.as_json().items():
        if seconds is not None:
            TURN_STAGE_SECONDS.labels(stage, engine).observe(max(seconds, 0.0))  # a histogram's sum must not fall


# The engine's figures, each with the stage that it led to.
_LEADS_TO: Final = {"stt": "transcript", "ttt": "first_audio", "tts": "first_audio"}


class TurnLatencyTracker:
    """
    Collects the stages of one turn after another, and hands each turn that is over to `tell`.

    `sounds` is told when the first sound of an answer has left: the timing so far, None where nobody had spoken.

    Of each stage the first time counts. A turn exists once its text is there: a caller who only cleared their throat,
    and the agent's greeting, are none.
    """

    def __init__(
        self, tell: Callable[[TurnLatency], None], *, sounds: Callable[[TurnLatency | None], None] = lambda _: None
    ) -> None:
        self.finished: list[TurnLatency] = []
        self._tell = tell
        self._sounds = sounds
        self._seen: dict[str, float] = {}
        self._reported: dict[str, float] = {}

    # Where turns begin and end

    def caller_spoke(self) -> None:
        """The caller began to speak: the turn before is over, a new one begins. Safe to repeat."""
        self._finish()

    def call_over(self) -> None:
        self._finish()

    # Its stages

    def speech_ended(self, at: float) -> None:
        if "transcript" not in self._seen:
            self._saw("speech_ended", at)

    def transcript(self, at: float) -> None:
        """The turn's text. A second one with no speech noticed between is a turn of its own."""
        if "transcript" in self._seen:
            self._finish()
        self._saw("transcript", at)

    def llm_request(self, at: float) -> None:
        self._saw("llm_request", at)

    def first_token(self, at: float) -> None:
        self._saw("first_token", at)

    def first_audio(self, at: float) -> None:
        self._saw("first_audio", at)

    def first_frame(self, at: float) -> None:
        if "first_frame" not in self._seen:
            self._seen["first_frame"] = at
            self._sounds(self._timing() if "transcript" in self._seen else None)

    def reported(self, *, stt: float | None = None, ttt: float | None = None, tts: float | None = None) -> None:
        """
        The engine's own seconds: sound to text, request to first word of the model, first word to first sound.

        Reports come again and again, even in silence, and carry no turn. Of each figure the last before its stage
        counts; where there was none, the first after it.
        """
        for figure, seconds in (("stt", stt), ("ttt", ttt), ("tts", tts)):
            settled = figure in self._reported and _LEADS_TO[figure] in self._seen
            if seconds is not None and not settled:
                self._reported[figure] = seconds

    # Itself

    def _saw(self, stage: str, at: float) -> None:
        self._seen.setdefault(stage, at)

    def _finish(self) -> None:
        timing = self._timing() if "transcript" in self._seen else None
        self._seen, self._reported = {}, {}
        if timing is not None:
            self.finished.append(timing)
            self._tell(timing)

    def _timing(self) -> TurnLatency:
        at = self._all_times()
        ended = at.get("speech_ended", at["transcript"])
        seconds = {stage: round(at[stage] - ended, _DIGITS) for stage in _STAGES if stage in at}
        if "speech_ended" not in at:
            del seconds["transcript"]  # it stands for the end of speech itself
        return TurnLatency(**seconds)

    def _all_times(self) -> dict[str, float]:
        """What was seen, and what follows from the engine's figures."""
        at = dict(self._seen)
        for unseen, known, figure in (
            ("speech_ended", "transcript", "stt"),
            ("first_token", "first_audio", "tts"),
            ("llm_request", "first_token", "ttt"),
        ):
            if known in at and figure in self._reported:
                at.setdefault(unseen, at[known] - self._reported[figure])
        return at
