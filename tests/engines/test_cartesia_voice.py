"""Cartesia's voice socket. tests/fakes/speech_services.py compares the messages with the official SDK's types."""

import json

import pytest

from gateway.engines.cartesia_voice import CartesiaCodec, speak_path
from gateway.engines.interface import WordEnd
from gateway.engines.streaming import ServiceFailed, VoiceAudio, VoiceDone, VoiceWords
from gateway.errors import RemoteProtocolError


class Cartesia:
    """A codec that was asked for one text, and the messages about it."""

    def __init__(self):
        self.codec = CartesiaCodec("the-voice", "sonic-3.5", "en")
        [self.request] = [json.loads(frame) for frame in self.codec.say(1, "Well, I am here!")]

    def receive(self, kind, **fields):
        message = {"type": kind, "context_id": self.request["context_id"], **fields}
        return self.codec.receive(json.dumps(message).encode())


@pytest.fixture
def cartesia():
    return Cartesia()


def test_request_asks_for_mulaw_and_times(cartesia):
    assert speak_path() == "/tts/websocket?cartesia_version=2026-08-14"
    assert cartesia.request == {
        "model_id": "sonic-3.5",
        "voice": {"mode": "id", "id": "the-voice"},
        "language": "en",
        "output_format": {"container": "raw", "encoding": "pcm_mulaw", "sample_rate": 8000},
        "add_timestamps": True,
        "continue": False,
        "transcript": "Well, I am here!",
        "context_id": cartesia.request["context_id"],
    }


def test_audio_and_its_end(cartesia):
    assert cartesia.receive("chunk", data="AQI=") == [VoiceAudio(1, b"\x01\x02")]
    assert cartesia.receive("done") == [VoiceDone(1)]


def test_words_are_found_in_the_text(cartesia):
    """Punctuation belongs to the word before it, and words that the text does not have are skipped."""
    times = {"words": ["Well", "I", "other"], "start": [0, 0.5, 0.6], "end": [0.4, 0.55, 0.7]}
    expected = VoiceWords(1, (WordEnd(5, 3200), WordEnd(7, 4400)))
    assert cartesia.receive("timestamps", word_timestamps=times) == [expected]
    times = {"words": ["am", "here"], "start": [0.7, 0.8], "end": [0.8, 1.0]}
    expected = VoiceWords(1, (WordEnd(10, 6400), WordEnd(16, 8000)))
    assert cartesia.receive("timestamps", word_timestamps=times) == [expected]


@pytest.mark.parametrize("end", [-1, 1e308, None, "1"])
def test_impossible_times_are_skipped(cartesia, end):
    times = {"words": ["Well", "I"], "start": [0, 0.5], "end": [end, 0.5]}
    assert cartesia.receive("timestamps", word_timestamps=times) == [VoiceWords(1, (WordEnd(7, 4000),))]


def test_cancelled_texts_are_cancelled_there(cartesia):
    cartesia.codec.say(2, "Two.")
    cartesia.codec.say(3, "Three.")
    frames = [json.loads(frame) for frame in cartesia.codec.cancel([1, 2, 3])]
    assert [frame["cancel"] for frame in frames] == [True, True]
    assert frames[0]["context_id"] == cartesia.request["context_id"]
    assert len(cartesia.codec.say(4, "Four.")) == 1


@pytest.mark.parametrize("status, retryable", [(400, False), (402, False), (429, True), (500, True)])
def test_error_fails_the_socket(cartesia, status, retryable):
    expected = [ServiceFailed("the_code", retryable)]
    assert cartesia.receive("error", status_code=status, error_code="the_code") == expected


def test_odd_messages_mean_nothing(cartesia):
    assert cartesia.codec.receive(b'{"type":"chunk","context_id":"other-1","data":"AQ=="}') == []
    assert cartesia.receive("flush_done") == cartesia.receive("timestamps", word_timestamps={"words": 1}) == []
    assert cartesia.codec.receive_binary(b"x") == []
    with pytest.raises(RemoteProtocolError, match="cartesia sent audio that is not base64"):
        cartesia.receive("chunk", data="*")
