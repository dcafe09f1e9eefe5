"""The speech process without its pipes: messages in, messages out."""

import queue
import threading

import pytest

from gateway.phone import voices
from gateway.speech.process import SpeechProcess
from gateway.speech.sound import decode
from gateway.speech.wire import Kind, SpeechMessage

QUIET = b"".join(voices.line_noise(100))


@pytest.fixture
def process(models):
    """One that runs; `told` is what it says, in order."""
    told = queue.Queue()
    process = SpeechProcess(models, told.put)
    process.told = told
    running = threading.Thread(target=process.run)
    running.start()
    yield process
    process.receive(None)
    running.join(timeout=10)


def tell(process, kind, call=1, number=0, body=b""):
    process.receive(SpeechMessage(kind, call, number, body))


def told(process):
    return process.told.get(timeout=60)


def test_calls_are_heard_apart(process):
    for call, text in ((1, "My name is Anna."), (2, "I have a question.")):
        tell(process, Kind.OPEN, call)
        tell(process, Kind.AUDIO, call, body=QUIET + voices.pico(text) + QUIET)
    heard = [told(process) for _ in range(4)]
    ended = {message.call: message.text for message in heard if message.kind is Kind.ENDED}
    assert ended == {1: "My name is Anna.", 2: "I have a question."}


def test_what_is_said_can_be_understood(process, models):
    tell(process, Kind.OPEN)
    tell(process, Kind.SAY, number=7, body=b"How can I help you?")
    sound = b""
    while (message := told(process)).kind is Kind.SOUND:
        assert message.number == 7
        sound += message.body
    assert message == SpeechMessage(Kind.SPOKEN, 1, 7)
    assert models.recogniser.text_of(decode(sound)) == "How can I help you?"


def test_hushed_texts_make_no_sound(process):
    tell(process, Kind.OPEN)
    tell(process, Kind.HUSH, number=3)
    for number in (1, 2, 3):
        tell(process, Kind.SAY, number=number, body=b"Hello.")
    sounding, spoken = set(), set()
    while spoken != {1, 2, 3}:
        message = told(process)
        (sounding if message.kind is Kind.SOUND else spoken).add(message.number)
    assert sounding == {3}


def test_a_call_that_is_over_is_forgotten(process):
    tell(process, Kind.OPEN)
    tell(process, Kind.CLOSE)
    tell(process, Kind.AUDIO, body=QUIET + voices.pico("Is anybody there?") + QUIET)
    tell(process, Kind.SAY, number=1, body=b"Hello.")
    assert told(process) == SpeechMessage(Kind.SPOKEN, 1, 1)
