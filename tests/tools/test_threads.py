import asyncio
import subprocess
import sys
import threading

import pytest

from gateway.tools.threads import ToolThreadFailed, ToolThreads, ToolThreadsBusy
from tests.stage import until


class Function:
    """Whose threads are counted."""


def threads(name):
    return [thread for thread in threading.enumerate() if thread.name == name]


async def test_work_is_done_in_a_daemon_thread():
    thread = await ToolThreads().run(Function(), lambda _: threading.current_thread(), name="lookup")
    assert thread is not threading.main_thread()
    assert (thread.name, thread.daemon) == ("lookup", True)


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, KeyboardInterrupt, asyncio.CancelledError])
async def test_no_error_gets_out_as_itself(error):
    def fail(_):
        raise error

    with pytest.raises(ToolThreadFailed) as raised:
        await ToolThreads().run(Function(), fail, name="fails")
    assert isinstance(raised.value.error, error)


async def test_coroutine_has_a_loop_of_its_own():
    async def which():
        return asyncio.get_running_loop()

    loop = await ToolThreads().run(Function(), lambda worker: worker.complete(which()), name="which")
    assert loop is not asyncio.get_running_loop()
    assert loop.is_closed()


async def test_given_up_coroutine_is_cancelled():
    started, cleaned_up = threading.Event(), threading.Event()

    async def wait():
        try:
            started.set()
            await asyncio.Event().wait()
        finally:
            cleaned_up.set()

    run = asyncio.create_task(ToolThreads().run(Function(), lambda worker: worker.complete(wait()), name="waits"))
    await until(started.is_set)
    run.cancel()
    await until(cleaned_up.is_set)
    await until(lambda: not threads("waits"))
    assert run.cancelled()


async def test_coroutine_given_up_early_never_starts():
    ready, go_on, started = threading.Event(), threading.Event(), threading.Event()

    async def effect():
        started.set()

    def work(worker):
        ready.set()
        go_on.wait()
        return worker.complete(effect())

    run = asyncio.create_task(ToolThreads().run(Function(), work, name="late"))
    await until(ready.is_set)
    run.cancel()
    await asyncio.wait({run})
    go_on.set()
    await until(lambda: not threads("late"))
    assert not started.is_set()


async def spin_for_ever():
    while True:
        pass


def spin(worker):
    while True:
        pass


@pytest.mark.parametrize("work", [spin, lambda worker: worker.complete(spin_for_ever())], ids=["plain", "coroutine"])
async def test_endless_loop_is_broken_off(work):
    workers = ToolThreads(break_off_after=0)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await workers.run(Function(), work, name="spins")
    await until(lambda: not threads("spins"))


async def test_given_up_work_may_finish():
    go_on, finished = threading.Event(), threading.Event()

    def work(_):
        go_on.wait()
        finished.set()

    run = asyncio.create_task(ToolThreads().run(Function(), work, name="slow"))
    await until(lambda: threads("slow"))
    run.cancel()
    await asyncio.wait({run})
    go_on.set()
    await until(finished.is_set)


async def test_hung_function_uses_up_its_own_share():
    workers, hung, healthy, gate = ToolThreads(most_per_function=2), Function(), Function(), threading.Event()
    for _ in range(2):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await workers.run(hung, lambda _: gate.wait(), name="hung")
    with pytest.raises(ToolThreadsBusy):
        await workers.run(hung, lambda _: "never", name="hung")
    assert await workers.run(healthy, lambda _: "fine", name="healthy") == "fine"
    gate.set()
    await until(lambda: not threads("hung"))
    assert await workers.run(hung, lambda _: "again", name="hung") == "again"


async def test_lost_error_is_logged_by_its_kind(caplog):
    async def fail():
        raise ValueError("the caller's secret")

    async def leave_behind():
        task = asyncio.ensure_future(fail())
        await asyncio.wait({task})

    await ToolThreads().run(Function(), lambda worker: worker.complete(leave_behind()), name="leaves")
    (record,) = caplog.records
    assert (record.message, record.error) == ("a task of a function failed", "ValueError")
    assert "secret" not in caplog.text


def test_hung_work_does_not_hold_up_the_end_of_the_process():
    program = """if True:
        import asyncio, threading
        from gateway.tools.threads import ToolThreads

        class Function: pass

        async def main():
            hung = ToolThreads().run(Function(), lambda _: threading.Event().wait(), name="hung")
            blocking = ToolThreads().run(Function(), lambda worker: worker.complete(block()), name="blocking")
            await asyncio.wait({asyncio.ensure_future(hung), asyncio.ensure_future(blocking)}, timeout=0.05)

        async def block():
            threading.Event().wait()

        asyncio.run(main())
    """
    subprocess.run([sys.executable, "-c", program], timeout=60, check=True)
