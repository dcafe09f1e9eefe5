"""The embedding model in a process of its own. How the embedder uses it is tested in test_embedder."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from gateway.memory.embeddings import minilm
from gateway.memory.embeddings.model_process import ModelGone, ModelLoader
from tests.stage import PATIENCE


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


def test_ended_process_is_reported():
    process = ModelLoader()()
    process._process.kill()
    process._process.wait()
    with pytest.raises(ModelGone, match="its process has ended"):
        process.embed("dog")
    process.close()


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
