"""The speech worker without its pipes: messages in, messages out."""

import contextlib
import queue
import threading
from dataclasses import replace

import pytest

from gateway.simulate.synthetic_caller import line_noise, pico
from gateway.speech.models import RemoteRecogniser, RemoteVoice
from gateway.speech.protocol import MessageKind, SpeechMessage
from gateway.speech.samples import decode
from gateway.speech.worker import SpeechWorker
from tests.fakes.audio_server import FakeAudioServer

QUIET = b"".join(line_noise(100))


@contextlib.contextmanager
def running(models):
    """A worker that runs; `sent` has its messages in order."""
    sent = queue.Queue()
    process = SpeechWorker(models, sent.put)
    process.sent = sent
    thread = threading.Thread(target=process.run)
    thread.start()
    yield process
    process.receive(None)
    thread.join(timeout=10)


@pytest.fixture
def process(models):
    with running(models) as process:
        yield process


def send(process, kind, call=1, number=0, body=b""):
    process.receive(SpeechMessage(kind, call, number, body))


def received(process):
    return process.sent.get(timeout=60)


def test_calls_are_recognised_separately(process):
    for call, text in ((1, "My name is Anna."), (2, "I have a question.")):
        send(process, MessageKind.OPEN, call)
        send(process, MessageKind.AUDIO, call, body=QUIET + pico(text) + QUIET)
    heard = [received(process) for _ in range(4)]
    ended = {message.call: message.text for message in heard if message.kind is MessageKind.SPEECH_ENDED}
    assert ended == {1: "My name is Anna.", 2: "I have a question."}


def test_synthesized_speech_can_be_recognised(process, models):
    send(process, MessageKind.OPEN)
    send(process, MessageKind.SAY, number=7, body=b"How can I help you?")
    sound = b""
    while (message := received(process)).kind is MessageKind.SYNTHESIZED:
        assert message.number == 7
        sound += message.body
    assert message == SpeechMessage(MessageKind.SPOKEN, 1, 7)
    assert models.recogniser.transcribe(decode(sound)) == "How can I help you?"


def test_cancelled_texts_are_not_synthesized(process):
    send(process, MessageKind.OPEN)
    send(process, MessageKind.CANCEL, number=3)
    for number in (1, 2, 3):
        send(process, MessageKind.SAY, number=number, body=b"Hello.")
    sounding, spoken = set(), set()
    while spoken != {1, 2, 3}:
        message = received(process)
        (sounding if message.kind is MessageKind.SYNTHESIZED else spoken).add(message.number)
    assert sounding == {3}


def test_failed_recognition_is_reported(process):
    """The turn ends as well, so that the caller is not left waiting."""
    process._models = replace(process._models, recogniser=RemoteRecogniser("http://127.0.0.1:1/v1", "whisper-1", ""))
    send(process, MessageKind.OPEN)
    send(process, MessageKind.AUDIO, body=QUIET + pico("Is anybody there?") + QUIET)
    assert [received(process).kind, received(process)] == [
        MessageKind.SPEECH_STARTED,
        SpeechMessage(MessageKind.FAILED, 1, body=b"recogniser failed: ConnectError"),
    ]
    assert received(process) == SpeechMessage(MessageKind.SPEECH_ENDED, 1)


def test_failed_synthesis_is_reported(process):
    with FakeAudioServer() as server:
        process._models = replace(process._models, voice=RemoteVoice(server.url, "tts-1", "alloy", "wrong"))
        send(process, MessageKind.OPEN)
        send(process, MessageKind.SAY, number=1, body=b"Hello.")
        assert received(process) == SpeechMessage(MessageKind.FAILED, 1, body=b"voice failed: HTTPStatusError 401")
        assert received(process) == SpeechMessage(MessageKind.SPOKEN, 1, 1)


def test_slow_server_does_not_hold_up_others(models):
    all_calls = threading.Barrier(8, timeout=30)
    with FakeAudioServer(before_answer=all_calls.wait) as server:
        remote = replace(models, voice=RemoteVoice(server.url, "tts-1", "alloy", server.key))
        with running(remote) as process:
            for call in range(8):
                send(process, MessageKind.OPEN, call)
                send(process, MessageKind.SAY, call, number=1, body=b"Hello.")
            kinds = [received(process).kind for _ in range(16)]
    assert set(kinds) == {MessageKind.SYNTHESIZED, MessageKind.SPOKEN}


def test_closed_call_is_dropped(process):
    send(process, MessageKind.OPEN)
    send(process, MessageKind.CLOSE)
    send(process, MessageKind.AUDIO, body=QUIET + pico("Is anybody there?") + QUIET)
    send(process, MessageKind.SAY, number=1, body=b"Hello.")
    assert received(process) == SpeechMessage(MessageKind.SPOKEN, 1, 1)
