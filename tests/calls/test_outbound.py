"""Outbound calls: what the agent gets to know, and that only their own gateway can read them."""

import asyncio
from pathlib import Path

import pytest

from gateway.agents import AgentDirectory, with_context
from gateway.calls.outbound import HOUR, OutboundCall, OutboundCallStore, speaker
from gateway.settings import Secret
from tests.fakes.shared_store import FakeSharedStore

ORDER = OutboundCall("+12025550143", "maya", "The bike is ready.", {"customer_id": "C-17"}, "Your bike is ready.")


def test_order_comes_back_as_it_was():
    assert OutboundCall.from_json(ORDER.as_json()) == ORDER
    assert OutboundCall.from_json(None) is None


def test_context_has_its_place_in_the_prompt():
    assert with_context("Why: {{ context }}. {{memory}}", "a sale") == "Why: a sale. {{memory}}"
    assert with_context("You are Maya.\n", "a sale") == "You are Maya.\n\n# Why you are calling\na sale"
    assert with_context("You are Maya.", "") == "You are Maya."


def test_speaker_knows_why_it_calls(tmp_path: Path):
    (tmp_path / "maya.md").write_text("You are Maya.")
    agents = AgentDirectory({"maya": {"prompt": "maya.md", "greeting": "Hello."}}, tmp_path)
    told = speaker(agents, "maya", ORDER)
    assert (told.greeting, told.prompt) == (
        "Your bike is ready.",
        "You are Maya.\n\n# Why you are calling\nThe bike is ready.",
    )
    assert speaker(agents, "maya", None) is agents.answering("maya")


async def test_order_is_read_with_the_same_token_alone():
    store = FakeSharedStore()
    book = OutboundCallStore(store, Secret("right"))
    await book.keep(ORDER)
    assert await book.find(ORDER.id) == ORDER
    assert await OutboundCallStore(store, Secret("wrong")).find(ORDER.id) is None
    await book.drop(ORDER.id)
    assert await book.find(ORDER.id) is None


@pytest.mark.virtual_time
async def test_so_many_calls_an_hour():
    store = FakeSharedStore()  # the nodes' own
    nodes = [OutboundCallStore(store, Secret("token"), per_hour=3) for _ in range(2)]
    assert await nodes[0].count_one_more() == 0
    await asyncio.sleep(HOUR / 2)
    assert [await nodes[number % 2].count_one_more() for number in range(3)] == [0, 0, HOUR / 2]
    await asyncio.sleep(HOUR / 2)
    assert [await node.count_one_more() for node in nodes] == [0, HOUR / 2]  # the hour slides


async def test_no_limit_per_hour():
    book = OutboundCallStore(FakeSharedStore(), Secret("token"))
    assert not any([await book.count_one_more() for _ in range(100)])
