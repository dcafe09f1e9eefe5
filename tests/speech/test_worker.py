"""The speech process without its pipes: messages in, messages out."""

import contextlib
import queue
import threading
from dataclasses import replace

import pytest

from gateway.simulate import voices
from gateway.speech.protocol import MessageKind, SpeechMessage
from gateway.speech.remote import RemoteRecogniser, RemoteVoice
from gateway.speech.samples import decode
from gateway.speech.worker import SpeechProcess
from tests.fakes.audio_server import FakeAudioServer

QUIET = b"".join(voices.line_noise(100))


@contextlib.contextmanager
def running(models):
    """One that runs; `told` is what it says, in order."""
    told = queue.Queue()
    process = SpeechProcess(models, told.put)
    process.told = told
    thread = threading.Thread(target=process.run)
    thread.start()
    yield process
    process.receive(None)
    thread.join(timeout=10)


@pytest.fixture
def process(models):
    with running(models) as process:
        yield process


def tell(process, kind, call=1, number=0, body=b""):
    process.receive(SpeechMessage(kind, call, number, body))


def told(process):
    return process.told.get(timeout=60)


def test_calls_are_heard_apart(process):
    for call, text in ((1, "My name is Anna."), (2, "I have a question.")):
        tell(process, MessageKind.OPEN, call)
        tell(process, MessageKind.AUDIO, call, body=QUIET + voices.pico(text) + QUIET)
    heard = [told(process) for _ in range(4)]
    ended = {message.call: message.text for message in heard if message.kind is MessageKind.SPEECH_ENDED}
    assert ended == {1: "My name is Anna.", 2: "I have a question."}


def test_what_is_said_can_be_understood(process, models):
    tell(process, MessageKind.OPEN)
    tell(process, MessageKind.SAY, number=7, body=b"How can I help you?")
    sound = b""
    while (message := told(process)).kind is MessageKind.SYNTHESIZED:
        assert message.number == 7
        sound += message.body
    assert message == SpeechMessage(MessageKind.SPOKEN, 1, 7)
    assert models.recogniser.text_of(decode(sound)) == "How can I help you?"


def test_cancelled_texts_are_not_synthesized(process):
    tell(process, MessageKind.OPEN)
    tell(process, MessageKind.CANCEL, number=3)
    for number in (1, 2, 3):
        tell(process, MessageKind.SAY, number=number, body=b"Hello.")
    sounding, spoken = set(), set()
    while spoken != {1, 2, 3}:
        message = told(process)
        (sounding if message.kind is MessageKind.SYNTHESIZED else spoken).add(message.number)
    assert sounding == {3}


def test_what_breaks_is_told(process):
    """The caller of a recogniser that does not answer is not left waiting, nor taken for silent."""
    process._models = replace(process._models, recogniser=RemoteRecogniser("http://127.0.0.1:1/v1", "whisper-1", ""))
    tell(process, MessageKind.OPEN)
    tell(process, MessageKind.AUDIO, body=QUIET + voices.pico("Is anybody there?") + QUIET)
    assert [told(process).kind, told(process)] == [
        MessageKind.SPEECH_STARTED,
        SpeechMessage(MessageKind.FAILED, 1, body=b"recogniser failed: URLError"),
    ]
    assert told(process) == SpeechMessage(MessageKind.SPEECH_ENDED, 1)


def test_a_text_that_cannot_be_said_is_told(process):
    with FakeAudioServer() as server:
        process._models = replace(process._models, voice=RemoteVoice(server.url, "tts-1", "alloy", "wrong"))
        tell(process, MessageKind.OPEN)
        tell(process, MessageKind.SAY, number=1, body=b"Hello.")
        assert told(process) == SpeechMessage(MessageKind.FAILED, 1, body=b"voice failed: HTTPError 401")
        assert told(process) == SpeechMessage(MessageKind.SPOKEN, 1, 1)


def test_a_slow_server_does_not_hold_up_others(models):
    everybody = threading.Barrier(8, timeout=30)
    with FakeAudioServer(before_answer=everybody.wait) as server:
        remote = replace(models, voice=RemoteVoice(server.url, "tts-1", "alloy", server.key))
        with running(remote) as process:
            for call in range(8):
                tell(process, MessageKind.OPEN, call)
                tell(process, MessageKind.SAY, call, number=1, body=b"Hello.")
            kinds = [told(process).kind for _ in range(16)]
    assert set(kinds) == {MessageKind.SYNTHESIZED, MessageKind.SPOKEN}


def test_a_call_that_is_over_is_forgotten(process):
    tell(process, MessageKind.OPEN)
    tell(process, MessageKind.CLOSE)
    tell(process, MessageKind.AUDIO, body=QUIET + voices.pico("Is anybody there?") + QUIET)
    tell(process, MessageKind.SAY, number=1, body=b"Hello.")
    assert told(process) == SpeechMessage(MessageKind.SPOKEN, 1, 1)
