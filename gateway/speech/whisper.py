"""Whisper by faster-whisper, in place of Moonshine: fewer errors with digits, many times the CPU. Extra `whisper`."""

from typing import Any, Final

from gateway.errors import EngineRefused
from gateway.extras import how_to_install
from gateway.speech.samples import RATE, Samples, faster

_MODEL_RATE: Final = 16_000


class Whisper:
    """`model` is a name that faster-whisper knows and downloads once, or a folder."""

    def __init__(self, model: str) -> None:
        try:
            from faster_whisper import WhisperModel
        except ImportError:
            raise EngineRefused(f"faster-whisper is not installed; run: {how_to_install('whisper')}") from None
        try:
            self._model: Any = WhisperModel(model, device="cpu", compute_type="int8", cpu_threads=1)
        except (OSError, ValueError, RuntimeError) as error:
            raise EngineRefused(f"whisper model {model} can't be loaded: {type(error).__name__}") from None

    def text_of(self, samples: Samples) -> str:
        wide = faster(samples, _MODEL_RATE // RATE)
        segments, _ = self._model.transcribe(wide, language="en", beam_size=1, condition_on_previous_text=False)
        return " ".join(segment.text.strip() for segment in segments)
