"""ElevenLabs' voice socket. tests/fakes/speech_services.py compares the messages with the official SDK's types."""

import base64
import json

import pytest

from gateway.engines.elevenlabs_voice import ElevenLabsCodec, speak_path
from gateway.engines.interface import WordEnd
from gateway.engines.streaming import ServiceFailed, VoiceAudio, VoiceDone, VoiceWords
from gateway.errors import RemoteProtocolError


def sent(frames):
    return [json.loads(frame) for frame in frames]


def chunk(characters, *, ms=100, size=800, context="1", **fields):
    """Each character takes `ms`, counted from the beginning of the chunk."""
    starts = [ms * number for number in range(len(characters))]
    alignment = {"chars": list(characters), "charStartTimesMs": starts, "charDurationsMs": [ms] * len(characters)}
    audio = base64.b64encode(b"\x01" * size).decode()
    return json.dumps({"audio": audio, "alignment": alignment, "contextId": context, **fields}).encode()


@pytest.fixture
def codec():
    codec = ElevenLabsCodec()
    codec.say(1, "I am here.")
    return codec


def test_path_asks_for_mulaw_and_times():
    path = speak_path("ab/c", "eleven_flash_v2_5", "en")
    assert path.startswith("/v1/text-to-speech/ab%2Fc/multi-stream-input?model_id=eleven_flash_v2_5&")
    assert "output_format=ulaw_8000" in path and "sync_alignment=true" in path and "language_code" not in path
    assert speak_path("v", "m", "de").endswith("&language_code=de")


def test_each_text_is_a_context_that_is_closed():
    codec = ElevenLabsCodec()
    assert sent(codec.say(7, "Hello.")) == [
        {"text": " ", "context_id": "7"},
        {"text": "Hello. ", "context_id": "7", "flush": True},
        {"context_id": "7", "close_context": True},
    ]


def test_two_texts_are_in_work_at_a_time(codec):
    assert len(codec.say(2, "Two.")) == 3
    assert codec.say(3, "Three.") == []
    assert codec.receive(b'{"isFinal":true,"contextId":"1"}') == [VoiceDone(1)]
    assert sent(codec.tick())[0]["context_id"] == "3"


def test_cancelled_contexts_leave_room_for_the_next_answer(codec):
    codec.say(2, "Two.")
    assert codec.cancel([1, 2]) == []
    assert len(codec.say(3, "Three.")) == len(codec.say(4, "Four.")) == 3
    assert codec.say(5, "Five.") == []
    codec.cancel([3, 4])
    assert len(codec.say(6, "Six.")) == 3
    assert codec.say(7, "Seven.") == []  # five contexts are open


def test_words_end_where_their_last_character_ends(codec):
    """Times count from the beginning of each chunk."""
    audio = b"\x01" * 800
    assert codec.receive(chunk("I am h")) == [
        VoiceWords(1, (WordEnd(1, 800), WordEnd(4, 3200))),
        VoiceAudio(1, audio),
    ]
    assert codec.receive(chunk("ere. ")) == [VoiceWords(1, (WordEnd(10, 800 + 3200),)), VoiceAudio(1, audio)]


def test_characters_that_are_not_in_the_text_are_skipped(codec):
    [words, _] = codec.receive(chunk("I äm here"))
    assert words == VoiceWords(1, (WordEnd(1, 800), WordEnd(4, 3200)))


@pytest.mark.parametrize("start", [-999, 1e308, None, "1"])
def test_impossible_times_are_skipped(codec, start):
    alignment = {"chars": ["I", " ", "a", "m"], "charStartTimesMs": [start, 0, 0, 100], "charDurationsMs": [1] * 4}
    frame = json.dumps({"audio": "AQ==", "alignment": alignment, "contextId": "1"}).encode()
    assert codec.receive(frame) == [VoiceWords(1, (WordEnd(4, 808),)), VoiceAudio(1, b"\x01")]


def test_audio_without_times_is_audio():
    codec = ElevenLabsCodec()
    frame = json.dumps({"audio": "AQ==", "alignment": None, "context_id": "1"}).encode()
    assert codec.receive(frame) == [VoiceAudio(1, b"\x01")]
    odd = {"chars": ["a"], "charStartTimesMs": [], "charDurationsMs": [1]}
    frame = json.dumps({"audio": "AQ==", "alignment": odd, "contextId": "1"}).encode()
    assert codec.receive(frame) == [VoiceAudio(1, b"\x01")]


def test_end_has_two_spellings(codec):
    assert codec.receive(b'{"is_final":true,"context_id":"1"}') == [VoiceDone(1)]


@pytest.mark.parametrize("code, retryable", [("max_active_conversations", True), ("quota_exceeded", False)])
def test_error_fails_the_socket(codec, code, retryable):
    assert codec.receive(json.dumps({"error": code, "message": ""}).encode()) == [ServiceFailed(code, retryable)]


def test_odd_messages_mean_nothing(codec):
    assert codec.receive(b'{"type":"flush_done"}') == codec.receive(b'{"contextId":"x","audio":"AQ=="}') == []
    assert codec.receive_binary(b"x") == []
    with pytest.raises(RemoteProtocolError, match="elevenlabs sent audio that is not base64"):
        codec.receive(b'{"contextId":"1","audio":"*"}')
