"""Calls to place: what the agent is told of them, and that only their own gateway can read them."""

from pathlib import Path

from gateway.agents import AgentDirectory, with_context
from gateway.calls.outbound import OutboundCall, OutboundCallStore, speaker
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
