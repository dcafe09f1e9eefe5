import asyncio

from gateway.calls.background_tasks import BackgroundTasks


async def test_errand_is_under_way_until_it_is_done():
    errands, finish = BackgroundTasks(), asyncio.Event()

    async def wait() -> None:
        await finish.wait()

    errands.send(wait())
    (task,) = errands.under_way
    finish.set()
    await task
    await asyncio.sleep(0)  # the callback that drops it runs after whoever waited
    assert errands.under_way == set()
