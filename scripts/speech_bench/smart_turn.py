"""Smart Turn 3.2 (BSD-2-Clause), the model inside the wheel of pipecat-ai: has a speaker finished, by intonation?"""

import zipfile
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gateway.speech.samples import RATE, Samples, upsample
from scripts.speech_bench.recordings import CACHE, download_wheel

_PACKAGE: Final = "pipecat-ai==1.14.0"
_MODEL: Final = "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx"
_SECONDS: Final = 8
_WIDE: Final = 16_000
_WINDOW, _HOP, _BANDS = 400, 160, 80  # the log-mel spectrogram of Whisper


class SmartTurn:
    def __init__(self, cache: Path = CACHE) -> None:
        import onnxruntime

        with zipfile.ZipFile(download_wheel(_PACKAGE, cache)) as wheel:
            model = wheel.read(_MODEL)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session: Any = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._filters = _mel_filters()

    def probability(self, samples: Samples) -> float:
        """That the turn is complete, from its last eight seconds."""
        wide = upsample(samples[-_SECONDS * RATE :], _WIDE // RATE)
        wide = np.pad(wide, (_SECONDS * _WIDE - len(wide), 0))
        return float(self._session.run(None, {"input_features": self._features(wide)[np.newaxis]})[0].item())

    def _features(self, wide: Samples) -> NDArray[np.float32]:
        normal = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-7)
        padded = np.pad(normal, _WINDOW // 2, mode="reflect")
        frames = np.lib.stride_tricks.sliding_window_view(padded, _WINDOW)[::_HOP][: _SECONDS * _WIDE // _HOP]
        power = np.abs(np.fft.rfft(frames * np.hanning(_WINDOW + 1)[:-1])) ** 2
        bands = np.log10(np.maximum(power @ self._filters, 1e-10)).T
        return ((np.maximum(bands, bands.max() - 8) + 4) / 4).astype(np.float32)


def _mel_filters() -> NDArray[np.float64]:
    """Triangles on the Slaney mel scale: linear up to 1000 Hz, then logarithmic."""
    step = np.log(6.4) / 27
    mels = np.linspace(0, 15 + np.log(_WIDE / 2 / 1000) / step, _BANDS + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp((mels - 15) * step))
    frequencies = np.linspace(0, _WIDE / 2, _WINDOW // 2 + 1)[:, None]
    rising = (frequencies - edges[:-2]) / np.diff(edges)[:-1]
    falling = (edges[2:] - frequencies) / np.diff(edges)[1:]
    return np.asarray(np.maximum(0, np.minimum(rising, falling)) * 2 / (edges[2:] - edges[:-2]))
