import asyncio
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from gateway.memory.embeddings import minilm, model_process
from gateway.memory.embeddings.embedder import Embedder
from gateway.memory.embeddings.model_process import ModelGone, ModelLoader
from gateway.memory.embeddings.vectors import VectorSpace
from tests.stage import PATIENCE


@pytest.fixture
def embedder():
    embedder = Embedder(minilm.load)
    yield embedder
    embedder.close()


async def read(embedder, text):
    return await asyncio.to_thread(embedder.read(text).result)


def vector(stored):
    return np.frombuffer(stored, "<f4")


async def test_vectors_have_length_one(embedder):
    stored = await embedder.embed(["The caller has a dog.", "A kettle was ordered."])
    both = vector(stored).reshape(-1, 384)
    assert both.shape == (2, 384)
    assert np.linalg.norm(both, axis=1) == pytest.approx([1, 1], abs=1e-5)


async def test_like_meanings_are_near(embedder):
    pet, question, invoice = [
        vector(await embedder.embed([text]))
        for text in ("The caller has a puppy.", "Does she own a pet?", "The invoice was paid in March.")
    ]
    assert pet @ question > invoice @ question + 0.2


async def test_evenly_weighed_reading_is_the_vector(embedder):
    text = "Does the caller own an unaffable pet?"
    reading = await read(embedder, text)
    assert reading.words == ("", "does", "the", "caller", "own", "an", "unaffable", "pet", "?", "")
    assert reading.pooled(lambda word: 1.0) == pytest.approx(vector(await embedder.embed([text])), abs=1e-5)


async def test_reading_is_remembered(embedder):
    assert await read(embedder, "Which pet?") is await read(embedder, "Which pet?")


async def test_no_model_is_loaded_before_the_first_text():
    threads = []

    def load():
        threads.append(threading.current_thread())
        return minilm.load()

    embedder = Embedder(load)
    assert threads == []
    await asyncio.gather(embedder.embed(["dog"]), read(embedder, "dog"), embedder.warm_up())
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    embedder.close()


async def test_missing_model_is_told_once(caplog):
    def load():
        raise ModelGone("not installed")

    embedder = Embedder(load)
    with caplog.at_level(logging.WARNING):
        assert await embedder.embed(["dog"]) is None
        assert await read(embedder, "dog") is None
    assert [record.message for record in caplog.records] == ["no embedding model, the store searches by words alone"]
    embedder.close()


# The model in a process of its own


@pytest.fixture(scope="module")
def process():
    process = ModelLoader()()
    yield process
    process.close()


async def test_process_reads_as_the_model_does(process):
    text = "Does the caller own an unaffable pet?"
    here = minilm.load()
    assert process.embed(text) == here.embed(text)
    there = process.read(text)
    assert there.words == here.read(text).words
    assert np.array_equal(there.vectors, here.read(text).vectors)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a thread has no policy of its own")
def test_documents_step_back_and_queries_do_not(process):
    process.embed("dog")  # by now its thread is there
    threads = sorted(int(thread.name) for thread in Path(f"/proc/{process._process.pid}/task").iterdir())
    policies = [os.sched_getscheduler(thread) for thread in threads]
    assert threads[0] == process._process.pid
    assert policies[0] == os.SCHED_OTHER
    assert os.SCHED_IDLE in policies


async def test_process_that_is_ready_is_the_one_that_loads(monkeypatch):
    started = []

    def start(command, **options):
        started.append(popen(command, **options))
        return started[-1]

    popen = subprocess.Popen
    monkeypatch.setattr(model_process.subprocess, "Popen", start)
    embedder = Embedder()
    await asyncio.gather(embedder.get_ready(), embedder.get_ready())
    assert len(started) == 1
    await embedder.embed(["dog"])
    await embedder.get_ready()
    embedder.close()
    embedder._documents.shutdown(wait=True)
    assert [process.poll() for process in started] == [0]


async def test_process_that_nobody_needed_ends_too():
    embedder = Embedder()
    await embedder.get_ready()
    process = embedder._loader._started._process
    embedder.close()
    embedder._documents.shutdown(wait=True)
    assert process.poll() == 0


async def test_lost_process_is_replaced(caplog):
    processes = []

    def load():
        processes.append(ModelLoader()())
        return processes[-1]

    embedder = Embedder(load)
    before = await embedder.embed(["dog"])
    processes[0]._process.kill()
    processes[0]._process.wait()
    with caplog.at_level(logging.WARNING):
        assert await embedder.embed(["dog"]) == before
    assert (await read(embedder, "dog")).words == ("", "dog", "")
    assert [record.message for record in caplog.records] == ["embedding model was lost, and is loaded again"]
    embedder.close()
    embedder._documents.shutdown(wait=True)
    assert [process._process.poll() is None for process in processes] == [False, False]


def test_process_ends_with_the_one_who_asks():
    """However that one ends: here it is killed."""
    code = (
        "import os, signal; from gateway.memory.embeddings.model_process import ModelLoader; process = ModelLoader()();"
        "print(process._process.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    child = int(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stdout)
    give_up = time.monotonic() + PATIENCE
    while is_running(child):
        assert time.monotonic() < give_up, "the model's process is still there"
        time.sleep(0.02)


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_nearest_part_of_each_document_counts():
    def stored(*axes):
        return b"".join(np.eye(1, 384, axis, dtype="<f4").tobytes() for axis in axes)

    space = VectorSpace([stored(0, 1, 2), stored(3), stored(4, 1)])
    nearest = space.nearest(np.eye(1, 384, 2, dtype=np.float32)[0])
    assert [part for _, part in nearest][0] == 2
    assert max(range(3), key=lambda document: nearest[document][0]) == 0


def test_one_document_is_as_near_as_it_is():
    """What a few vectors have in common is what they are about: little is taken off."""
    one = np.eye(1, 384, 0, dtype="<f4")
    between = np.array([1, 1, *[0] * 382], np.float32) / np.float32(np.sqrt(2))
    ((cosine, _),) = VectorSpace([one.tobytes()]).nearest(between)
    assert cosine == pytest.approx(0.68, abs=0.03)
