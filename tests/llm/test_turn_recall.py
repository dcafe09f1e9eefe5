import asyncio

import pytest

from gateway.errors import StoreUnavailable
from gateway.llm.responder import TurnRecall

LONG = 10.0


class SlowStore:
    """Answers when the test lets it."""

    def __init__(self):
        self.asked = []
        self.answers = {}

    async def search(self, said):
        self.asked.append(said)
        answer = self.answers[said] = asyncio.get_running_loop().create_future()
        return await answer

    async def was_asked(self, said):
        while said not in self.answers:
            await asyncio.sleep(0)
        return self.answers[said]


@pytest.fixture
def store():
    return SlowStore()


@pytest.fixture
async def impatient(store):
    memory = TurnRecall(store.search, seconds=0.0)
    yield memory
    memory.close()


async def test_memory_is_found():
    async def search(said):
        return ["Likes tea", f"Said {said}"]

    found = await TurnRecall(search, seconds=LONG).about("kettle")
    assert "<known>\nLikes tea\nSaid kettle\n</known>" in found


async def test_turn_is_looked_up_once(store):
    memory = TurnRecall(store.search, seconds=LONG)
    asking = [asyncio.create_task(memory.about("kettle")) for _ in range(2)]
    (await store.was_asked("kettle")).set_result(["Likes tea"])
    found = [await task for task in asking] + [await memory.about("kettle")]
    assert len(set(found)) == 1
    assert store.asked == ["kettle"]


async def test_late_memory_is_there_for_the_next_request(store, impatient):
    assert await impatient.about("kettle") == ""
    (await store.was_asked("kettle")).set_result(["Likes tea"])
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert "Likes tea" in await impatient.about("kettle")
    assert store.asked == ["kettle"]


async def test_new_turn_gives_up_the_last(store, impatient):
    await impatient.about("Is it")
    former = await store.was_asked("Is it")
    await impatient.about("Is it ready?")
    await store.was_asked("Is it ready?")
    assert former.cancelled()
    assert store.asked == ["Is it", "Is it ready?"]


async def test_end_of_call_ends_the_search(store, impatient):
    await impatient.about("kettle")
    search = await store.was_asked("kettle")
    impatient.close()
    await asyncio.sleep(0)
    assert search.cancelled()


@pytest.mark.parametrize("said", ["", "  \n"])
async def test_nothing_said_is_not_looked_up(store, impatient, said):
    assert await impatient.about(said) == ""
    assert store.asked == []


async def test_failing_store_costs_a_log_line(caplog):
    async def search(said):
        raise StoreUnavailable("can't be reached")

    assert await TurnRecall(search, seconds=LONG).about("kettle") == ""
    assert [(record.getMessage(), record.error) for record in caplog.records] == [
        ("memory could not be searched", "StoreUnavailable")
    ]


async def test_budget_holds():
    async def search(said):
        return ["kettle " * 1000, "tea"]

    found = await TurnRecall(search, seconds=LONG, budget_tokens=100).about("kettle")
    assert 300 < len(found) <= 400


async def test_forgotten_memory_is_not_used_again():
    known = ["The kettle is blue."]

    async def search(said):
        return list(known)

    memory = TurnRecall(search, seconds=LONG)
    assert "blue" in await memory.about("kettle")
    known.clear()
    memory.forget()
    assert await memory.about("kettle") == ""
