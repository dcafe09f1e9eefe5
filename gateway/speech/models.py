"""
The models of the local engine: voice activity, recognition and synthesis.

Each adapter takes and returns telephone audio. All of them may be used from several threads. They are loaded in the
speech worker process only; `model_files` says without importing any of this whether they are installed.
"""

import io
import json
import threading
import urllib.request
import uuid
import wave
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np

from gateway.errors import EngineRefused
from gateway.extras import how_to_install
from gateway.speech.config import DEFAULT_RECOGNISER, DEFAULT_VOICE, SpeechConfig
from gateway.speech.model_files import onnx_session, read_verified
from gateway.speech.samples import RATE, Samples, downsample, encode, resample, trim, upsample
from gateway.speech.vad import Silero

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
    silero: Silero
    recogniser: Recogniser
    voice: Voice

    @classmethod
    def load(cls, config: SpeechConfig | None = None, api_key: str = "") -> "Models":
        """Raises EngineRefused for a missing or altered model. `api_key` is for models behind a URL."""
        config = config or SpeechConfig()
        return cls(Silero(), _load_recogniser(config, api_key), _load_voice(config, api_key))

    @property
    def are_remote(self) -> bool:
        """Whether one of them is behind a URL."""
        return isinstance(self.recogniser, RemoteRecogniser) or isinstance(self.voice, RemoteVoice)


def _load_recogniser(config: SpeechConfig, api_key: str) -> Recogniser:
    if config.recogniser == DEFAULT_RECOGNISER:
        return Moonshine()
    if config.recogniser == "whisper":
        return Whisper(config.recogniser_model)
    return RemoteRecogniser(config.recogniser, config.recogniser_model, api_key)


def _load_voice(config: SpeechConfig, api_key: str) -> Voice:
    if config.voice == DEFAULT_VOICE:
        return HibariVoice()
    return RemoteVoice(config.voice, config.voice_model, config.voice_name, api_key)


# Moonshine

_MOONSHINE: Final = "moonshine_voice"
_ENCODER_SHA256: Final = "94e90a4654fc45cdfedb77c4c08e1739f48862998e58fada384b25118134f221"
_DECODER_SHA256: Final = "cf524c4862d36e9e5ab032eddc73637efd822d70e868ac575cf1a46e1e4708a0"
_TOKENS_SHA256: Final = "6884b35fd6377d4c4d32336a0bc152f36b64d1e45b6503683cdc238250a8472d"
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
        folder = "assets/tiny-en"
        self._encoder = onnx_session(read_verified(_MOONSHINE, f"{folder}/encoder_model.ort", _ENCODER_SHA256))
        self._decoder = onnx_session(read_verified(_MOONSHINE, f"{folder}/decoder_model_merged.ort", _DECODER_SHA256))
        self._tokens = _read_tokens(read_verified(_MOONSHINE, f"{folder}/tokenizer.bin", _TOKENS_SHA256))
        self._past_names = [given.name for given in self._decoder.get_inputs() if given.name.startswith("past")]

    def transcribe(self, samples: Samples) -> str:
        """For audio of up to half a minute."""
        wide = upsample(samples, _RECOGNISER_RATE // RATE)
        wide = np.pad(wide, (0, max(0, _MIN_SAMPLES - len(wide))))[np.newaxis]
        mask = np.ones(wide.shape, np.int64)
        (states,) = self._encoder.run(None, {"input_values": wide, "attention_mask": mask})
        max_tokens = max(4, int(wide.shape[1] / _RECOGNISER_RATE * _TOKENS_PER_SECOND) + 1)
        return self._join(self._decode(states, mask, max_tokens))

    def _decode(self, states: Any, mask: Any, max_tokens: int) -> list[int]:
        """Greedy decoding."""
        empty = np.zeros((1, _HEADS, 0, _HEAD_SIZE), np.float32)
        past = dict.fromkeys(self._past_names, empty)
        tokens = [_START_TOKEN]
        while len(tokens) <= max_tokens:
            logits, *present = self._decoder.run(
                None,
                {
                    "input_ids": np.array([tokens[-1:]], np.int64),
                    "encoder_hidden_states": states,
                    "encoder_attention_mask": mask,  # in samples, not in states: the graph reduces it itself
                    "use_cache_branch": np.array([len(tokens) > 1]),
                    **past,
                },
            )
            token = int(logits[0, -1].argmax())
            if token == _END_TOKEN:
                break
            for name, value in zip(self._past_names, present, strict=True):
                if len(tokens) == 1 or ".decoder." in name:  # the encoder's part is valid in the first step only
                    past[name] = value
            tokens.append(token)
        return tokens[1:]

    def _join(self, tokens: list[int]) -> str:
        text = b"".join(self._tokens[token] for token in tokens).decode("utf-8", "replace").replace("▁", " ").strip()
        return text[:-1] if text.endswith("..") and not text.endswith("...") else text


def _read_tokens(content: bytes) -> list[bytes]:
    """Each token follows its length, one byte or, from 128 on, two. A byte without a token of its own is <0x0A>."""
    tokens, at = [], 0
    while at < len(content):
        length, at = content[at], at + 1
        if length >= 128:
            length, at = content[at] * 128 + length - 128, at + 1
        token, at = content[at : at + length], at + length
        is_byte = len(token) == 6 and token.startswith(b"<0x")
        tokens.append(
            bytes([int(token[3:5], 16)]) if is_byte else b"" if token in (b"<unk>", b"<s>", b"</s>") else token
        )
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

_HIBARI: Final = "hibari"
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
            read_verified(_HIBARI, f"assets/{name}", sha256)
        from hibari import Hibari

        self._model: Any = Hibari(voice="heart", threads=1)
        self._phonemizing = threading.Lock()  # that part is not thread-safe
        self.synthesize("Ready.")  # loads what Hibari loads on first use

    def synthesize(self, text: str) -> bytes:
        with self._phonemizing:
            phonemes = self._model.phonemize(text)
        sentences = (
            downsample(self._model.from_phonemes(sentence, seed=0), _SYNTHESIS_RATE // RATE) for sentence in phonemes
        )
        return b"".join(
            encode(trim(samples, before=_LEADING_SILENCE, after=_TRAILING_SILENCE) * _LOUDNESS) for samples in sentences
        )


# OpenAI's audio API

_REQUEST_SECONDS: Final = 10.0
_MAX_BYTES: Final = 16 * 1024 * 1024


class RemoteRecogniser:
    """`POST /audio/transcriptions` of OpenAI's API, which many servers offer. Blocks the calling thread."""

    def __init__(self, url: str, model: str, api_key: str) -> None:
        self._url = f"{url}/audio/transcriptions"
        self._model = model
        self._api_key = api_key

    def transcribe(self, samples: Samples) -> str:
        """Raises OSError or ValueError for a missing or unusable answer."""
        boundary = uuid.uuid4().hex
        fields = {"model": self._model, "language": "en", "response_format": "json"}
        parts = [_form_part(boundary, f'name="{name}"', value.encode()) for name, value in fields.items()]
        parts.append(_form_part(boundary, 'name="file"; filename="speech.wav"', _wav(samples)))
        body = b"".join(parts) + f"--{boundary}--\r\n".encode()
        answer = json.loads(_post(self._url, body, f"multipart/form-data; boundary={boundary}", self._api_key))
        return str(answer["text"]).strip()


class RemoteVoice:
    """`POST /audio/speech` of OpenAI's API. Blocks the calling thread."""

    def __init__(self, url: str, model: str, voice: str, api_key: str) -> None:
        self._url = f"{url}/audio/speech"
        self._model = model
        self._voice = voice
        self._api_key = api_key

    def synthesize(self, text: str) -> bytes:
        """Raises OSError, ValueError or wave.Error for a missing or unusable answer."""
        request = {"model": self._model, "voice": self._voice, "input": text, "response_format": "pcm"}
        content = _post(self._url, json.dumps(request).encode(), "application/json", self._api_key)
        return encode(trim(_decode_pcm(content), before=_LEADING_SILENCE, after=_TRAILING_SILENCE))


def _post(url: str, body: bytes, content_type: str, api_key: str) -> bytes:
    headers = {"Content-Type": content_type, **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, timeout=_REQUEST_SECONDS) as answer:
        content: bytes = answer.read(_MAX_BYTES)
    return content


def _form_part(boundary: str, disposition: str, content: bytes) -> bytes:
    return f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content + b"\r\n"


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
