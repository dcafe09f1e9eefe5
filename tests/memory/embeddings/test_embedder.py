import asyncio
import logging
import threading

import numpy as np
import pytest

from gateway.memory.embeddings import minilm
from gateway.memory.embeddings.embedder import Embedder
from gateway.memory.embeddings.model_process import ModelGone, ModelLoader


@pytest.fixture
def embedder():
    embedder = Embedder(minilm.load)
    yield embedder
    embedder.close()


async def read(embedder, text):
    return await asyncio.to_thread(embedder.read(text).result)


async def read_at_last(embedder, text):
    """A query waits a second for its reading. A busy machine may take longer."""
    async with asyncio.timeout(60):
        while (reading := await read(embedder, text)) is None:
            pass
    return reading


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
    reading = await read_at_last(embedder, text)
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


async def test_missing_model_is_logged_once(caplog):
    def load():
        raise ModelGone("not installed")

    embedder = Embedder(load)
    with caplog.at_level(logging.WARNING):
        assert await embedder.embed(["dog"]) is None
        assert await read(embedder, "dog") is None
    assert [record.message for record in caplog.records] == ["no embedding model, the store searches by words alone"]
    embedder.close()


# The model in a process of its own


async def test_process_that_is_ready_is_the_one_that_loads():
    embedder = Embedder()
    await asyncio.gather(embedder.get_ready(), embedder.get_ready())
    started = embedder._load._started
    await embedder.embed(["dog"])
    assert embedder._model is started and embedder._load._started is None
    await embedder.get_ready()
    assert embedder._load._started is None
    embedder.close()
    embedder._documents.shutdown(wait=True)
    assert started._process.poll() == 0


async def test_unused_process_ends_too():
    embedder = Embedder()
    await embedder.get_ready()
    process = embedder._load._started._process
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
