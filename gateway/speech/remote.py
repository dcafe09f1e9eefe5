"""Recogniser and voice behind OpenAI's audio interface, as many servers have it. Used on threads that may wait."""

import io
import json
import urllib.error
import urllib.request
import uuid
import wave
from typing import Final

import numpy as np

from gateway.speech.samples import RATE, Samples, encode, resampled, trimmed

_SECONDS: Final = 10.0
_MOST_BYTES: Final = 16 * 1024 * 1024
_PCM_RATE: Final = 24_000
"""What `pcm` means in that interface: 16 bits, one channel."""


class RemoteRecogniser:
    """`POST /audio/transcriptions`."""

    def __init__(self, address: str, model: str, api_key: str) -> None:
        self._url = f"{address}/audio/transcriptions"
        self._model = model
        self._api_key = api_key

    def text_of(self, samples: Samples) -> str:
        """Raises OSError or ValueError where there is no answer that can be used."""
        boundary = uuid.uuid4().hex
        fields = {"model": self._model, "language": "en", "response_format": "json"}
        parts = [_part(boundary, f'name="{name}"', value.encode()) for name, value in fields.items()]
        parts.append(_part(boundary, 'name="file"; filename="speech.wav"', _as_wav(samples)))
        body = b"".join(parts) + f"--{boundary}--\r\n".encode()
        answer = json.loads(_posted(self._url, body, f"multipart/form-data; boundary={boundary}", self._api_key))
        return str(answer["text"]).strip()


class RemoteVoice:
    """`POST /audio/speech`."""

    def __init__(self, address: str, model: str, voice: str, api_key: str) -> None:
        self._url = f"{address}/audio/speech"
        self._model = model
        self._voice = voice
        self._api_key = api_key

    def say(self, text: str) -> bytes:
        """Raises OSError, ValueError or wave.Error where there is no answer that can be used."""
        wish = {"model": self._model, "voice": self._voice, "input": text, "response_format": "pcm"}
        content = _posted(self._url, json.dumps(wish).encode(), "application/json", self._api_key)
        return encode(trimmed(_sound(content), before=0.03, after=0.25))


def _posted(url: str, body: bytes, content_type: str, api_key: str) -> bytes:
    headers = {"Content-Type": content_type, **({"Authorization": f"Bearer {api_key}"} if api_key else {})}
    request = urllib.request.Request(url, body, headers)
    with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
        content: bytes = answer.read(_MOST_BYTES)
    return content


def _part(boundary: str, disposition: str, content: bytes) -> bytes:
    return f"--{boundary}\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content + b"\r\n"


def _sound(content: bytes) -> Samples:
    """Samples as they were asked for; or a WAV file, which some servers send whatever they are asked for."""
    rate, channels = _PCM_RATE, 1
    if content.startswith(b"RIFF"):
        with wave.open(io.BytesIO(content)) as file:
            if file.getsampwidth() != 2:
                raise ValueError("not 16 bits a sample")
            rate, channels = file.getframerate(), file.getnchannels()
            content = file.readframes(file.getnframes())
    values = np.frombuffer(content[: len(content) // (2 * channels) * 2 * channels], "<i2").astype(np.float32)
    return resampled(values.reshape(-1, channels)[:, 0] / np.float32(32768), rate)


def _as_wav(samples: Samples) -> bytes:
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setnchannels(1)
        wav.setsampwidth(2)
        wav.setframerate(RATE)
        wav.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return file.getvalue()
