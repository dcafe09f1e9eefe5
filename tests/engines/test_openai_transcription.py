"""OpenAI's transcription session. The fake in speech_services.py compares messages with the official types."""

import json

import pytest

from gateway.engines.openai_transcription import OpenAiTranscriptionCodec
from gateway.engines.streaming import ServiceFailed, TurnBegan, TurnRecognised

STARTED, STOPPED = {"type": "input_audio_buffer.speech_started"}, {"type": "input_audio_buffer.speech_stopped"}


@pytest.fixture
def codec():
    return OpenAiTranscriptionCodec("gpt-transcribe", "en", "normal")


def receive(codec, *messages):
    return [event for message in messages for event in codec.receive(json.dumps(message).encode())]


def committed(item):
    return {"type": "input_audio_buffer.committed", "item_id": item}


def completed(item, text):
    kind = "conversation.item.input_audio_transcription.completed"
    return {"type": kind, "item_id": item, "transcript": text}


def test_session_is_for_transcription_of_mulaw(codec):
    [update] = map(json.loads, codec.opening(["Rohloff"]))
    assert update == {
        "type": "session.update",
        "session": {
            "type": "transcription",
            "audio": {
                "input": {
                    "format": {"type": "audio/pcmu"},
                    "transcription": {"model": "gpt-transcribe", "language": "en", "keywords": ["Rohloff"]},
                    "turn_detection": {"type": "server_vad", "silence_duration_ms": 500},
                }
            },
        },
    }
    older = OpenAiTranscriptionCodec("gpt-4o-transcribe", "en", "long")
    assert b"keywords" not in older.opening(["Rohloff"])[0]
    assert b'"silence_duration_ms":900' in older.opening([])[0]
    assert older.keyterms(["Rohloff"]) == []


def test_audio_is_appended(codec):
    assert json.loads(codec.audio(b"\x01\x02")) == {"type": "input_audio_buffer.append", "audio": "AQI="}


def test_turn_is_complete_with_its_text(codec):
    assert receive(codec, STARTED) == [TurnBegan()]
    assert not codec.is_text_due
    assert receive(codec, STOPPED, committed("a")) == []
    assert codec.is_text_due
    assert receive(codec, completed("a", "Hello.")) == [TurnRecognised("Hello.")]
    assert not codec.is_text_due


def test_late_text_and_the_next_speech_are_one_turn(codec):
    receive(codec, STARTED, STOPPED, committed("a"), STARTED)
    assert receive(codec, completed("a", "My name")) == []
    assert receive(codec, STOPPED, committed("b"), completed("b", "is Anna.")) == [TurnRecognised("My name is Anna.")]


def test_texts_that_swap_stand_in_the_order_of_their_speech(codec):
    receive(codec, STARTED, STOPPED, committed("a"), STARTED, STOPPED, committed("b"))
    assert receive(codec, completed("b", "two")) == []
    assert receive(codec, completed("a", "one")) == [TurnRecognised("one two")]


def test_failed_transcription_is_a_turn_without_words(codec):
    failed = {"type": "conversation.item.input_audio_transcription.failed", "item_id": "a"}
    assert receive(codec, STARTED, STOPPED, committed("a"), failed) == [TurnBegan(), TurnRecognised("")]


def test_other_audio_format_is_refused(codec):
    audio = {"input": {"format": {"type": "audio/pcm", "rate": 24000}}}
    [failed] = receive(codec, {"type": "session.updated", "session": {"type": "transcription", "audio": audio}})
    assert failed == ServiceFailed("audio/pcmu was not accepted", retryable=False)
    audio["input"]["format"] = {"type": "audio/pcmu"}
    assert receive(codec, {"type": "session.updated", "session": {"audio": audio}}) == []


@pytest.mark.parametrize(
    "error, events",
    [
        ({"type": "invalid_request_error", "code": "input_audio_buffer_commit_empty"}, []),
        ({"type": "invalid_request_error", "code": "invalid_api_key"}, [ServiceFailed("invalid_api_key", False)]),
        ({"type": "server_error", "code": None}, [ServiceFailed("server_error")]),
        ("odd", [ServiceFailed("error")]),
    ],
)
def test_some_errors_fail_the_socket(codec, error, events):
    assert receive(codec, {"type": "error", "error": error}) == events


def test_forced_end_commits(codec):
    receive(codec, STARTED)
    assert codec.end_turn() == b'{"type":"input_audio_buffer.commit"}'
    assert receive(codec, committed("a"), completed("a", "One")) == [TurnRecognised("One")]


def test_patience_is_the_silence_that_ends_a_turn(codec):
    codec.opening(["Rohloff"])
    [update] = map(json.loads, codec.patience("dictation"))
    sound = update["session"]["audio"]["input"]
    assert sound["turn_detection"]["silence_duration_ms"] == 1500
    assert sound["transcription"]["keywords"] == ["Rohloff"]
