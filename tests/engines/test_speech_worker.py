"""The real speech process, as the gateway runs it."""

import asyncio

import pytest

from gateway.engines.speech_worker import SpeechWorkerClient
from gateway.errors import EngineRefused
from gateway.maintenance import running
from gateway.simulate import voices
from tests.stage import until

QUIET = b"".join(voices.line_noise(100))


class Listener:
    def __init__(self):
        self.sound, self.spoken, self.began, self.heard, self.lost = b"", [], 0, [], False

    def on_began(self):
        self.began += 1

    def on_ended(self, text):
        self.heard.append(text)

    def on_sound(self, number, audio):
        self.sound += audio

    def on_spoken(self, number):
        self.spoken.append(number)

    def on_speech_broke(self, what):
        raise AssertionError(what)

    def on_speech_lost(self):
        self.lost = True


@pytest.fixture
async def host():
    host = SpeechWorkerClient()
    async with running(host.run()):
        await host.ready()
        yield host


async def test_it_hears_and_speaks(host):
    listener = Listener()
    speech_channel = host.speech_channel(listener)
    assert speech_channel.say("How can I help you?") == 1
    await until(lambda: listener.spoken == [1])
    speech_channel.hear(QUIET + listener.sound + QUIET)
    await until(lambda: listener.heard)
    assert (listener.began, listener.heard) == (1, ["How can I help you?"])
    speech_channel.leave()
    assert (host.taken_seats, host.state) == (0, "ready")


async def test_a_dead_process_is_replaced(host):
    listener = Listener()
    host.speech_channel(listener)
    host._process.kill()
    await until(lambda: listener.lost)
    await host.ready()
    second = Listener()
    host.speech_channel(second).say("Here again.")
    await until(lambda: second.spoken)
    assert len(second.sound) > 1600


async def test_one_that_cannot_load_is_not_started_again(monkeypatch, tmp_path):
    (tmp_path / "hibari").mkdir()
    (tmp_path / "hibari" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    host = SpeechWorkerClient()
    await asyncio.wait_for(host.run(), 60)
    with pytest.raises(EngineRefused, match="hibari has no assets/hibari.onnx"):
        await host.ready()
    assert host.state == "failed"
