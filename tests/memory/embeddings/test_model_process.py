"""The embedding model in a process of its own. How the embedder uses it is tested in test_embedder."""

import contextlib
import os
import signal
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


# Shared by several workers


@pytest.fixture
def workers(tmp_path):
    """Two clients of one process."""
    loaders = [ModelLoader(tmp_path / "model.sock") for _ in range(2)]
    clients = [loader() for loader in loaders]
    yield clients
    for client in clients:
        client.close()


def model_processes(path):
    """Those that listen on this socket."""
    inodes = [line.split()[6] for line in Path("/proc/net/unix").read_text().splitlines() if line.endswith(f" {path}")]
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if b"model_process\0listening" in (process / "cmdline").read_bytes():
                links = {os.readlink(file) for file in (process / "fd").iterdir()}
                found += [int(process.name)] if links & {f"socket:[{inode}]" for inode in inodes} else []
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_workers_share_a_process_that_ends_with_the_last(workers, tmp_path):
    path = tmp_path / "model.sock"
    first, second = workers
    [pid] = model_processes(path)
    assert first.embed("dog") == second.embed("dog")
    assert first.read("dog").words == second.read("dog").words
    first.close()
    second.embed("cat")
    assert model_processes(path) == [pid]
    second.close()
    give_up = time.monotonic() + PATIENCE
    while model_processes(path):
        assert time.monotonic() < give_up, "the model's process is still there"
        time.sleep(0.02)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_killed_process_is_replaced_by_one_for_all(workers, tmp_path):
    [pid] = model_processes(tmp_path / "model.sock")
    os.kill(pid, signal.SIGKILL)
    for client in workers:
        with pytest.raises(ModelGone, match="its process has ended"):
            client.embed("dog")
    again = [ModelLoader(tmp_path / "model.sock")() for _ in range(2)]
    try:
        assert again[0].embed("dog") == again[1].embed("dog")
        assert len(model_processes(tmp_path / "model.sock")) == 1
    finally:
        for client in again:
            client.close()


def test_socket_that_cannot_be_made_is_reported(tmp_path):
    with pytest.raises(ModelGone, match="its process could not be reached"):
        ModelLoader(tmp_path / "missing" / "model.sock").start()


def is_running(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
