"""Recogniser and voice at an address, against a server that checks what it is sent."""

import io
import re
import sys
import urllib.error
import wave

import numpy as np
import pytest

from gateway.errors import EngineRefused
from gateway.extras import how_to_install
from gateway.speech.config import SpeechConfig
from gateway.speech.models import Models
from gateway.speech.remote import RemoteRecogniser, RemoteVoice
from gateway.speech.samples import decode
from gateway.speech.whisper import Whisper
from tests.fakes.audio_server import FakeAudioServer


@pytest.fixture
def server():
    with FakeAudioServer() as server:
        yield server


def test_sound_becomes_words(server):
    recogniser = RemoteRecogniser(server.url, "whisper-1", "audio-key")
    assert recogniser.text_of(np.full(8000, 0.5, np.float32)) == "Is it ready?"
    assert server.asked == [{"model": "whisper-1", "language": "en", "response_format": "json"}]
    assert server.heard == [(16383).to_bytes(2, "little") * 8000]


def test_words_become_sound(server):
    sound = RemoteVoice(server.url, "kokoro", "af_heart", "audio-key").say("Hello.")
    wish = {"model": "kokoro", "voice": "af_heart", "input": "Hello.", "response_format": "pcm"}
    assert server.asked == [wish]
    assert len(sound) == pytest.approx(8000, abs=50)
    assert abs(decode(sound)).max() == pytest.approx(0.5, abs=0.05)


def test_a_wav_file_will_do(server):
    """Some servers send one whatever they are asked for; its head is no sound."""
    with wave.open(file := io.BytesIO(), "wb") as wav:
        wav.setnchannels(2)
        wav.setsampwidth(2)
        wav.setframerate(16_000)
        wav.writeframes(np.repeat((0.5 * np.sin(np.arange(16_000) / 8) * 32767).astype("<i2"), 2).tobytes())
    server.pcm = file.getvalue()
    sound = decode(RemoteVoice(server.url, "kokoro", "af_heart", "audio-key").say("Hello."))
    assert len(sound) == pytest.approx(8000, abs=50)
    assert np.abs(sound).max() == pytest.approx(0.5, abs=0.05)


def test_a_wrong_key_is_an_error_like_any(server):
    with pytest.raises(urllib.error.HTTPError):
        RemoteRecogniser(server.url, "whisper-1", "wrong").text_of(np.zeros(800, np.float32))


def test_choices_decide(server):
    models = Models.load(SpeechConfig.read(server.url, f"{server.url}#tts-1/alloy"), "audio-key")
    assert models.recogniser.text_of(np.zeros(800, np.float32)) == "Is it ready?"
    assert isinstance(models.voice, RemoteVoice)


def test_a_missing_whisper_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "faster_whisper", None)
    with pytest.raises(
        EngineRefused,
        match=re.escape(f"faster-whisper is not installed; run: {how_to_install('whisper')}"),
    ):
        Whisper("base.en")
