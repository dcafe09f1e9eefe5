"""The real speech worker process, as the gateway runs it."""

import asyncio

import pytest

from gateway.engines.local import LocalSpeech, SpeechWorkerTimeouts
from gateway.errors import EngineRefused
from gateway.maintenance import running
from gateway.simulate.synthetic_caller import line_noise
from tests.stage import PATIENCE, until

QUIET = b"".join(line_noise(100))


class Listener:
    def __init__(self):
        self.audio, self.spoken, self.started, self.heard, self.lost = b"", [], 0, [], False

    def on_speech_started(self):
        self.started += 1

    def on_speech_ended(self, text):
        self.heard.append(text)

    def on_audio(self, number, audio):
        self.audio += audio

    def on_spoken(self, number):
        self.spoken.append(number)

    def on_speech_failed(self, problem):
        assert problem == "the speech process ended"
        self.lost = True


@pytest.fixture
async def worker():
    worker = LocalSpeech({}, SpeechWorkerTimeouts(), max_calls=1)
    async with running(worker.run()):
        await worker.ready(PATIENCE)
        yield worker


async def test_worker_recognises_and_speaks(worker):
    listener = Listener()
    channel = worker.open_channel(listener)
    assert channel.say("How can I help you?") == 1
    await until(lambda: listener.spoken == [1])
    channel.send_audio(QUIET + listener.audio + QUIET)
    await until(lambda: listener.heard)
    assert (listener.started, listener.heard) == (1, ["How can I help you?"])
    assert worker.is_full
    channel.close()
    assert not worker.is_full and worker.health() == {"engine_state": "ready"}


async def test_dead_process_is_replaced(worker):
    listener = Listener()
    worker.open_channel(listener)
    worker._process.kill()
    await until(lambda: listener.lost)
    await worker.ready(PATIENCE)
    second = Listener()
    worker.open_channel(second).say("Here again.")
    await until(lambda: second.spoken)
    assert len(second.audio) > 1600


async def test_process_that_cannot_load_its_models_is_not_restarted(monkeypatch, tmp_path):
    (tmp_path / "hibari").mkdir()
    (tmp_path / "hibari" / "__init__.py").write_text("")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    worker = LocalSpeech({}, SpeechWorkerTimeouts(), max_calls=1)
    await asyncio.wait_for(worker.run(), 60)
    with pytest.raises(EngineRefused, match="hibari has no assets/hibari.onnx"):
        await worker.ready(PATIENCE)
    assert worker.is_ready and worker.health()["engine_state"] == "failed"
