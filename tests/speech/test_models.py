"""Models behind a URL, against a server that checks its requests. The local ones are tested in test_stt_stream."""

import io
import re
import sys
import wave

import httpx
import numpy as np
import pytest

from gateway.errors import EngineRefused
from gateway.extras import how_to_install
from gateway.speech.config import SpeechConfig
from gateway.speech.models import Models, RemoteRecogniser, RemoteVoice, Whisper
from gateway.speech.samples import decode
from tests.fakes.audio_server import FakeAudioServer


@pytest.fixture
def server():
    with FakeAudioServer() as server:
        yield server


def test_audio_is_transcribed(server):
    recogniser = RemoteRecogniser(server.url, "whisper-1", "audio-key")
    assert recogniser.transcribe(np.full(8000, 0.5, np.float32)) == "Is it ready?"
    assert server.asked == [{"model": "whisper-1", "language": "en", "response_format": "json"}]
    assert server.heard == [(16383).to_bytes(2, "little") * 8000]


def test_text_is_synthesized(server):
    audio = RemoteVoice(server.url, "kokoro", "af_heart", "audio-key").synthesize("Hello.")
    request = {"model": "kokoro", "voice": "af_heart", "input": "Hello.", "response_format": "pcm"}
    assert server.asked == [request]
    assert len(audio) == pytest.approx(8000, abs=50)
    assert abs(decode(audio)).max() == pytest.approx(0.5, abs=0.05)


def test_wav_file_is_accepted(server):
    """Some servers send one whatever the request says; its header is not audio."""
    with wave.open(file := io.BytesIO(), "wb") as wav:
        wav.setnchannels(2)
        wav.setsampwidth(2)
        wav.setframerate(16_000)
        wav.writeframes(np.repeat((0.5 * np.sin(np.arange(16_000) / 8) * 32767).astype("<i2"), 2).tobytes())
    server.pcm = file.getvalue()
    audio = decode(RemoteVoice(server.url, "kokoro", "af_heart", "audio-key").synthesize("Hello."))
    assert len(audio) == pytest.approx(8000, abs=50)
    assert np.abs(audio).max() == pytest.approx(0.5, abs=0.05)


def test_wrong_key_is_an_error(server):
    with pytest.raises(httpx.HTTPStatusError):
        RemoteRecogniser(server.url, "whisper-1", "wrong").transcribe(np.zeros(800, np.float32))


def test_endless_answer_is_an_error(server):
    server.pcm = bytes(17 << 20)
    with pytest.raises(ValueError, match="too much"):
        RemoteVoice(server.url, "kokoro", "af_heart", "audio-key").synthesize("Hello.")


def test_config_selects_the_models(server):
    models = Models.load(SpeechConfig.read(server.url, f"{server.url}#tts-1/alloy"), "audio-key")
    assert models.recogniser.transcribe(np.zeros(800, np.float32)) == "Is it ready?"
    assert isinstance(models.voice, RemoteVoice)


def test_missing_whisper_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(
        EngineRefused,
        match=re.escape(f"faster-whisper is not installed; run: {how_to_install('whisper')}"),
    ):
        Whisper("base.en")
