"""Deepgram's speech sockets. tests/fakes/speech_services.py compares the messages with the official SDK's types."""

import json
from urllib.parse import parse_qsl

import pytest
from deepgram.listen.v2.types import ListenV2Configure

from gateway.engines.deepgram_codec import FLUX_PATIENCE
from gateway.engines.deepgram_speech import (
    FLUSH_WINDOW,
    MAX_FLUSHES,
    SINGLE_FLUSHES,
    AuraCodec,
    FluxCodec,
    FluxVoiceCodec,
    NovaCodec,
    listen_path,
    speak_path,
)
from gateway.engines.streaming import ServiceFailed, TurnBegan, TurnRecognised, VoiceAudio, VoiceDone

METADATA = b'{"type":"SpeechMetadata","speech_id":"a"}'
FLUSHED, CLEARED = b'{"type":"Flushed","sequence_id":0}', b'{"type":"Cleared","sequence_id":1}'


def test_paths_ask_for_telephone_audio():
    path, _, query = listen_path("nova-3", "de", "normal").partition("?")
    wanted = dict(parse_qsl(query))
    assert (path, wanted["language"], wanted["encoding"], wanted["sample_rate"]) == (
        "/v1/listen",
        "de",
        "mulaw",
        "8000",
    )
    assert listen_path("flux-general-en", "en", "normal") == (
        "/v2/listen?model=flux-general-en&encoding=mulaw&sample_rate=8000&eot_threshold=0.7&eot_timeout_ms=5000"
    )
    assert listen_path("flux-general-multi", "de", "normal").endswith("&language_hint=de")
    assert speak_path("aura-2-thalia-en") == "/v1/speak?model=aura-2-thalia-en&encoding=mulaw&sample_rate=8000"


def test_patience_decides_about_the_end_of_turns():
    assert "endpointing=800" in listen_path("nova-3", "en", "long")
    assert "eot_threshold=0.85&eot_timeout_ms=8000" in listen_path("flux-general-en", "en", "long")


# Nova


def results(text="", *, start=1.0, duration=0.5, **flags):
    channel = {"alternatives": [{"transcript": text}]}
    return json.dumps({"type": "Results", "start": start, "duration": duration, "channel": channel, **flags}).encode()


def started(at=1.0):
    return json.dumps({"type": "SpeechStarted", "timestamp": at}).encode()


def events(codec, *frames):
    return [event for frame in frames for event in codec.receive(frame)]


@pytest.fixture
def nova():
    return NovaCodec(takes_keyterms=True)


def test_final_parts_make_a_turn(nova):
    frames = [started(), results("my na"), results("My name", is_final=True), results("is", is_final=True)]
    assert events(nova, *frames) == [TurnBegan()]
    assert events(nova, results("Anna.", is_final=True, speech_final=True)) == [TurnRecognised("My name is Anna.")]


def test_words_begin_a_turn_by_themselves(nova):
    assert events(nova, results(""), results("yes")) == [TurnBegan()]
    assert events(nova, b'{"type":"UtteranceEnd","last_word_end":2.0}') == [TurnRecognised("")]


def test_gap_between_words_ends_a_turn_in_noise(nova):
    assert events(nova, results("Yes.", is_final=True), b'{"type":"UtteranceEnd"}') == [
        TurnBegan(),
        TurnRecognised("Yes."),
    ]


def test_noise_is_a_turn_without_words(nova):
    assert events(nova, started(1.0), results(is_final=True, start=1.0, duration=1.0)) == [TurnBegan()]
    assert events(nova, results(is_final=True, start=2.0, duration=1.0)) == [TurnRecognised("")]


def test_late_report_of_speech_begins_no_turn(nova):
    events(nova, results("Yes.", is_final=True, speech_final=True))
    assert events(nova, started(1.2)) == []
    assert events(nova, started(2.0)) == [TurnBegan()]


def test_silence_is_no_turn(nova):
    assert events(nova, results(is_final=True, speech_final=True), b'{"type":"UtteranceEnd"}') == []


def test_forced_end_returns_what_was_recognised(nova):
    assert nova.end_turn() == b'{"type":"Finalize"}'
    assert events(nova, started(), results("One two", is_final=True, from_finalize=True)) == [
        TurnBegan(),
        TurnRecognised("One two"),
    ]


def test_only_nova_3_is_given_names(nova):
    assert [json.loads(frame) for frame in nova.opening(["Anna"])] == [{"type": "Configure", "keyterms": ["Anna"]}]
    assert nova.opening([]) == []
    assert NovaCodec(takes_keyterms=False).opening(["Anna"]) == []


@pytest.mark.parametrize(
    "frame",
    [b'{"type":"Results"}', b'{"type":"Results","channel":{"alternatives":[]},"start":"x"}', b'{"type":"Metadata"}'],
)
def test_odd_messages_mean_nothing(nova, frame):
    assert nova.receive(frame) == []


def test_error_fails_the_socket(nova):
    assert events(nova, b'{"type":"Error","variant":"SchemaError","description":""}') == [ServiceFailed("SchemaError")]


# Flux


def turn(event, text=""):
    return json.dumps({"type": "TurnInfo", "event": event, "transcript": text}).encode()


def test_flux_decides_about_turns():
    frames = [turn("StartOfTurn"), turn("Update", "My"), turn("EndOfTurn", "My name is Anna.\0")]
    assert events(FluxCodec(), *frames) == [TurnBegan(), TurnRecognised("My name is Anna.")]


def test_flux_may_fail():
    assert events(FluxCodec(), b'{"type":"Error","code":"NET-0001"}') == [ServiceFailed("NET-0001")]
    assert events(FluxCodec(), b'{"type":"Connected"}', turn("TurnResumed")) == []


@pytest.mark.parametrize("patience", ["short", "normal", "long", "dictation"])
def test_flux_waits_as_long_as_it_should(patience):
    [frame] = FluxCodec().patience(patience)
    threshold, timeout = FLUX_PATIENCE[patience]
    message = json.loads(frame)
    assert message["thresholds"] == {"eot_threshold": threshold, "eot_timeout_ms": timeout}
    assert ListenV2Configure.model_validate(message).thresholds is not None
    assert NovaCodec(takes_keyterms=True).patience(patience) == []


# Aura


class Aura:
    def __init__(self):
        self.now = 0.0
        self.codec = AuraCodec(lambda: self.now)

    def say(self, number, text="Hello."):
        return [json.loads(frame)["type"] for frame in self.codec.say(number, text)]


@pytest.fixture
def aura():
    return Aura()


def test_each_sentence_is_flushed(aura):
    assert [json.loads(frame) for frame in aura.codec.say(1, "Hello.")] == [
        {"type": "Speak", "text": "Hello. "},
        {"type": "Flush"},
    ]
    assert aura.say(2) == ["Speak", "Flush"]
    assert aura.codec.receive_binary(b"1") == [VoiceAudio(1, b"1")]
    assert aura.codec.receive(FLUSHED) == [VoiceDone(1)]
    assert aura.codec.receive_binary(b"2") == [VoiceAudio(2, b"2")]


def test_audio_of_a_cleared_text_is_dropped(aura):
    aura.say(1)
    assert aura.codec.cancel([1]) == [b'{"type":"Clear"}']
    aura.say(2)
    assert aura.codec.receive_binary(b"1") == []
    assert aura.codec.receive(FLUSHED) == []
    assert aura.codec.receive(CLEARED) == []
    assert aura.codec.receive_binary(b"2") == [VoiceAudio(2, b"2")]


def test_nothing_is_cleared_without_need(aura):
    assert aura.codec.cancel([]) == []
    assert aura.codec.receive_binary(b"late") == []


def test_sentences_are_flushed_together_before_flushes_run_out(aura):
    """Deepgram ignores more than 20 flushes a minute. The texts of one flush are reported with its first audio."""
    for number in range(SINGLE_FLUSHES):
        assert aura.say(number) == ["Speak", "Flush"]
    assert aura.say(100) == aura.say(101) == []
    for _ in range(SINGLE_FLUSHES):
        aura.codec.receive(FLUSHED)
    assert [json.loads(frame)["type"] for frame in aura.codec.tick()] == ["Speak", "Speak", "Flush"]
    assert aura.codec.receive_binary(b"12") == [VoiceDone(100), VoiceAudio(101, b"12")]
    assert aura.codec.receive_binary(b"34") == [VoiceAudio(101, b"34")]
    assert aura.codec.receive(FLUSHED) == [VoiceDone(101)]


def test_flushes_wait_for_the_window(aura):
    for number in range(MAX_FLUSHES):
        assert aura.say(number) == ["Speak", "Flush"]
        aura.codec.receive(FLUSHED)
    assert aura.say(100) == []
    aura.now = FLUSH_WINDOW
    assert len(aura.codec.tick()) == 2


def test_aura_may_fail(aura):
    assert aura.codec.receive(b'{"type":"Error","err_code":"DATA-0000"}') == [ServiceFailed("DATA-0000")]
    assert aura.codec.receive(b'{"type":"Warning","code":"X","description":""}') == []


# Flux, the voice


def test_flux_speaks_one_text_at_a_time():
    codec = FluxVoiceCodec()
    assert [json.loads(frame) for frame in codec.say(1, "One.")] == [
        {"type": "Speak", "text": "One."},
        {"type": "Flush"},
    ]
    assert codec.say(2, "Two.") == []
    assert codec.receive_binary(b"1") == [VoiceAudio(1, b"1")]
    assert codec.receive(b'{"type":"SpeechStarted","speech_id":"a"}') == codec.receive(FLUSHED) == []
    assert codec.receive(METADATA) == [VoiceDone(1)]
    assert len(codec.tick()) == 2
    assert codec.receive_binary(b"2") == [VoiceAudio(2, b"2")]


def test_next_answer_follows_the_end_of_a_cancelled_text():
    codec = FluxVoiceCodec()
    codec.say(1, "One.")
    codec.say(2, "Two.")
    assert codec.cancel([1, 2]) == codec.say(3, "Three.") == []
    assert codec.receive(METADATA) == [VoiceDone(1)]
    assert json.loads(codec.tick()[0])["text"] == "Three."


def test_flux_voice_may_fail():
    codec = FluxVoiceCodec()
    assert codec.receive(b'{"type":"Error","code":"NET-0000"}') == [ServiceFailed("NET-0000")]
    assert codec.receive(METADATA) == codec.receive_binary(b"x") == []
