"""Recognition of real audio with the real models."""

import numpy as np
import pytest

from gateway.audio import SILENCE_BYTE
from gateway.simulate.synthetic_caller import line_noise, pico
from gateway.speech.endpointing import TurnDetector
from gateway.speech.models import VoiceActivityDetector
from gateway.speech.samples import RATE, encode
from gateway.speech.stt_stream import SpeechEnded, SpeechStarted, SttStream, TranscribeRequest

QUIET = b"".join(line_noise(100))  # two seconds


@pytest.fixture
def listen(models):
    """All events in some audio with their times; recognition takes no time."""

    def listen(sound, *, frame_bytes=160, end=False, patience="normal"):
        stt_stream, heard = SttStream(VoiceActivityDetector(models.silero), TurnDetector()), []
        stt_stream.set_patience(patience)

        def take(events, at):
            for event in events:
                if isinstance(event, TranscribeRequest):
                    heard.append((at, len(event.samples) / RATE))
                    take(stt_stream.transcribed(event.number, models.recogniser.transcribe(event.samples)), at)
                else:
                    heard.append((at, event))

        for at in range(0, len(sound), frame_bytes):
            take(stt_stream.feed(sound[at : at + frame_bytes]), (at + frame_bytes) / RATE)
        if end:
            take(stt_stream.end_turn(), len(sound) / RATE)
        return heard

    return listen


def texts(heard):
    return [event.text for _, event in heard if isinstance(event, SpeechEnded)]


def keypad(row, column, seconds, level=0.25):
    at = np.arange(int(seconds * RATE)) / RATE
    return encode((level * (np.sin(2 * np.pi * row * at) + np.sin(2 * np.pi * column * at))).astype(np.float32))


def test_sentence_is_recognised(listen):
    heard = listen(QUIET + pico("I would like to book an appointment.") + QUIET)
    assert texts(heard) == ["I would like to book an appointment."]
    assert isinstance(heard[0][1], SpeechStarted)


def test_frames_of_any_length_say_the_same(listen):
    sound = QUIET + pico("I would like to book an appointment.") + QUIET
    assert texts(listen(sound, frame_bytes=777)) == texts(listen(sound, frame_bytes=20))


def test_speech_is_detected_within_a_fifth_of_a_second(listen):
    heard = listen(QUIET + pico("Stop, please. I have another question.") + QUIET)
    assert heard[0][0] - len(QUIET) / RATE < 0.2


def test_two_turns_are_two(listen):
    sound = QUIET + pico("My name is Anna.") + QUIET + pico("I have a question.") + QUIET
    assert texts(listen(sound)) == ["My name is Anna.", "I have a question."]


def test_incomplete_sentence_gets_more_time(listen):
    gap = QUIET[: RATE * 7 // 10]
    sound = QUIET + pico("I would like to") + gap + pico("book an appointment.") + QUIET
    assert len(texts(listen(sound))) == 1


@pytest.mark.parametrize(("patience", "turns"), [("normal", 3), ("dictation", 1)])
def test_number_that_was_asked_for_is_one_turn(listen, patience, turns):
    gap = QUIET[: RATE * 14 // 10]
    groups = ("zero four seven", "nine one", "six three two")
    sound = QUIET + b"".join(pico(group) + gap for group in groups) + QUIET
    assert len(texts(listen(sound, patience=patience))) == turns


@pytest.mark.parametrize(("patience", "turns"), [("short", 2), ("long", 1)])
def test_patience_decides_what_a_pause_is(listen, patience, turns):
    gap = QUIET[: RATE * 5 // 10]
    sound = QUIET + pico("My name is Anna.") + gap + pico("I have a question.") + QUIET
    assert len(texts(listen(sound, patience=patience))) == turns


def test_keys_never_reach_the_recogniser(listen):
    keys = b"".join(keypad(row, column, 0.12) + QUIET[:1000] for row in (697, 852) for column in (1209, 1477))
    assert listen(QUIET + keys + QUIET + keypad(941, 1336, 1.0) + QUIET) == []


@pytest.mark.parametrize("level", [0.01, 0.02, 0.05, 0.5])
@pytest.mark.parametrize("seconds", [0.04, 0.07, 0.1])
def test_faint_and_short_keys_never_reach_the_recogniser(listen, seconds, level):
    """After a tone the voice activity detector would take line noise for a voice."""
    keys = b"".join(
        keypad(row, column, seconds, level) + pause
        for row, column in ((852, 1209), (697, 1633), (941, 1336))
        for pause in (bytes([SILENCE_BYTE]) * 800, QUIET[:700])
    )
    assert listen(QUIET + keys + QUIET) == []


def test_words_after_keys_are_recognised(listen):
    sound = QUIET + keypad(697, 1209, 0.1) + QUIET[:1200] + pico("I would like to book an appointment.") + QUIET
    assert texts(listen(sound)) == ["I would like to book an appointment."]


def test_noise_never_reaches_the_recogniser(listen):
    noise = encode(np.random.default_rng(2).normal(0, 0.1, 2 * RATE).astype(np.float32))
    silence = bytes([SILENCE_BYTE]) * RATE
    assert listen(QUIET + noise + silence + QUIET + silence + QUIET) == []


def test_text_without_letters_is_empty(models):
    stt_stream, ended = SttStream(VoiceActivityDetector(models.silero), TurnDetector()), []
    for event in stt_stream.feed(QUIET + pico("I would like to book an appointment.") + QUIET):
        assert not isinstance(event, SpeechEnded)
        if isinstance(event, TranscribeRequest):
            ended += stt_stream.transcribed(event.number, "♪ ♪")
    assert ended == [SpeechEnded("")]


def test_forced_end_keeps_the_words_so_far(listen):
    sound = QUIET + pico("My order number is four seven two nine one six.")
    assert texts(listen(sound)) == []
    assert len(texts(listen(sound, end=True))) == 1


def test_silence_has_no_turn_to_end(listen):
    assert listen(QUIET, end=True) == []


def test_long_turn_is_recognised_in_segments(listen):
    sentence = pico("I have been a customer of yours for a very long time, and I have always been happy, but")
    sound = QUIET + (sentence + QUIET[: RATE // 3]) * 4 + QUIET
    heard = listen(sound)
    [text] = texts(heard)
    assert text.lower().count("customer") == 4
    assert max(length for _, length in heard if isinstance(length, float)) < 20
