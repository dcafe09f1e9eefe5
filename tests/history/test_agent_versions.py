import asyncio
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from gateway.agents import AgentDirectory, LiveSettings
from gateway.history.agent_versions import FILES, AgentVersionTable, follow_files
from gateway.history.stores import MEMORY_SCHEMA
from tests.stage import until_it

NOW = datetime(2026, 11, 18, 12, 0, tzinfo=UTC)
ONE, TWO = LiveSettings("One.", "Hi.", "luna"), LiveSettings("Two.", "Hi.", "luna")


@pytest.fixture
async def table(ground):
    async with ground.opened(schema=MEMORY_SCHEMA) as store:
        yield AgentVersionTable(store, kept=3, now=lambda: NOW)


async def versions(table, agent="maya"):
    return [await table.find(agent, entry.version) for entry in await table.entries(agent)]


async def test_versions_are_listed_newest_first(table):
    assert [await table.add("maya", texts, "admin") for texts in (ONE, TWO, TWO, ONE)] == [1, 2, 0, 3]
    await table.add("tom", TWO, FILES)
    found = await table.entries("maya")
    assert [(entry.number, entry.version) for entry in found] == [(3, ONE.version), (2, TWO.version), (1, ONE.version)]
    assert (found[0].at, found[0].actor) == (NOW, "admin")


async def test_version_is_found_by_its_hash_and_knows_what_it_replaced(table):
    for texts in (ONE, TWO):
        await table.add("maya", texts, "admin")
    found = await table.find("maya", TWO.version)
    assert found.live == TWO
    assert (await table.before(found)).live == ONE
    assert await table.before(await table.find("maya", ONE.version)) is None
    assert await table.find("tom", ONE.version) is None


async def test_version_can_be_taken_back(table):
    await table.add("maya", ONE, "admin")
    await table.remove(await table.add("maya", TWO, "admin"))
    assert [version.live for version in await versions(table)] == [ONE]


async def test_oldest_versions_are_deleted(table):
    await table.add("tom", ONE, FILES)
    for number in range(5):
        await table.add("maya", LiveSettings(str(number), "", ""), "admin")
    assert [version.live.prompt for version in await versions(table)] == ["4", "3", "2"]
    assert len(await table.entries("tom")) == 1


async def test_engine_and_tools_are_kept(table):
    live = replace(
        ONE, engine=("local", "xai"), disabled_tools=frozenset({"b", "a"}), transfer_to={"d": "+12025550177"}
    )
    await table.add("maya", live, "admin")
    [found] = await versions(table)
    assert (found.live, found.version) == (live, live.version)


async def test_changed_files_become_versions(table, tmp_path):
    agents = AgentDirectory({}, tmp_path)
    following = asyncio.create_task(follow_files(agents, table, 0.01))
    await until_it(lambda: table.entries("maya"))
    agents.prompt_path("maya").parent.mkdir()
    agents.prompt_path("maya").write_text("Mine.")

    async def is_recorded():
        return [one for one in await versions(table) if one.live.prompt == "Mine."]

    [version] = await until_it(is_recorded)
    assert (version.actor, version.version) == (FILES, agents.get("maya").version)
    following.cancel()
