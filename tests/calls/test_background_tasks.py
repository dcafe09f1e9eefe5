import asyncio

from gateway.calls.background_tasks import BackgroundTasks


async def test_errand_is_under_way_until_it_is_done():
    background_tasks, finish = BackgroundTasks(), asyncio.Event()

    async def wait() -> None:
        await finish.wait()

    background_tasks.send(wait())
    (task,) = background_tasks.under_way
    finish.set()
    await task
    await asyncio.sleep(0)  # the callback that drops it runs after whoever waited
    assert background_tasks.under_way == set()
