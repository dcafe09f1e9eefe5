from pathlib import Path
from types import SimpleNamespace

import pytest

from gateway.agents import Agent
from gateway.engines.interface import FunctionCall
from gateway.memory.access import MemoryAccess
from gateway.memory.identity import IdentifierSource, RepeatCallerSettings
from gateway.session import TrustLevel
from gateway.tools.builtin import (
    HANDED_OVER,
    NAMES,
    NOT_ALLOWED,
    NOTHING_FOUND,
    delegation,
    knowledge_search,
    memory_search,
    transfer_schema,
)
from gateway.tools.schema import ArgumentsRefused

CALLER = "+12025550143"
MAYA = Agent("maya", "You are Maya.")


async def use(builtin, **arguments):
    return await builtin.handler(FunctionCall("f1", builtin.schema.definition.name, "{}"), arguments)


class Searches:
    """A search that keeps its queries."""

    def __init__(self, found: str) -> None:
        self.found = found
        self.queries = []

    async def __call__(self, agent, caller, text, *, person=""):
        self.queries.append((agent, caller, text, person))
        return self.found


async def test_memory_is_searched_for_the_current_caller():
    search, access = Searches("Ana waits for a chain."), MemoryAccess(caller=CALLER)
    [builtin] = memory_search(search)(MAYA, access)
    access.caller, access.person = "state:customer:7", "Ana"
    assert await use(builtin, query="chain") == "Ana waits for a chain."
    assert search.queries == [("maya", "state:customer:7", "chain", "Ana")]


async def test_empty_search_is_explained():
    [builtin] = memory_search(Searches(""))(MAYA, MemoryAccess(caller=CALLER))
    assert await use(builtin, query="chain") == NOTHING_FOUND


async def test_memory_needs_the_highest_level():
    search = Searches("Ana waits for a chain.")
    [builtin] = memory_search(search)(MAYA, MemoryAccess(TrustLevel.SUMMARIES, caller=CALLER))
    assert await use(builtin, query="chain") == NOT_ALLOWED
    assert search.queries == []


def test_withheld_number_has_no_memory_to_search():
    assert list(memory_search(Searches(""))(MAYA, MemoryAccess())) == []


def test_caller_may_be_identified_later():
    by_state = RepeatCallerSettings(identifier_source=IdentifierSource("state", "customer"))
    agent = Agent("maya", "You are Maya.", repeat_caller=by_state)
    assert len(list(memory_search(Searches(""))(agent, MemoryAccess()))) == 1


class Documents:
    async def search(self, agent, query):
        return []


async def test_knowledge_is_for_agents_with_documents():
    assert list(knowledge_search(Documents())(MAYA, MemoryAccess())) == []
    reader = Agent("maya", "You are Maya.", knowledge=Path("docs"))
    [builtin] = knowledge_search(Documents())(reader, MemoryAccess())
    assert await use(builtin, query="opening hours") == NOTHING_FOUND


async def test_tasks_and_messages_are_handed_over():
    delivered = []
    delegator = SimpleNamespace(hand_over=lambda to, task: delivered.append((to, task.kind, task.caller, task.text)))
    agent = Agent("maya", "You are Maya.", text_agent="openclaw/main")
    source = delegation(delegator, lambda agent, caller: agent.text_agent)
    task, message = source(agent, MemoryAccess(caller=CALLER))
    assert await use(task, task="Book a table.") == HANDED_OVER
    assert await use(message, message="Ana called.") == HANDED_OVER
    assert delivered == [
        ("openclaw/main", "task", CALLER, "Book a table."),
        ("openclaw/main", "message", CALLER, "Ana called."),
    ]
    assert list(source(MAYA, MemoryAccess())) == []


@pytest.mark.parametrize("level", TrustLevel)
async def test_only_a_trusted_call_continues_the_session_of_the_text_agent(level):
    """The text agent learns the level, too."""
    delivered = []
    delegator = SimpleNamespace(hand_over=lambda to, task: delivered.append((to, task.caller, task.trust)))
    agent = Agent("maya", "You are Maya.", text_agent="openclaw/main")
    task, _ = delegation(delegator, lambda agent, caller: caller)(agent, MemoryAccess(level, caller=CALLER))
    await use(task, task="Book a table.")
    assert delivered == [(CALLER if level is TrustLevel.EVERYTHING else "", CALLER, str(level))]


def test_transfer_goes_to_configured_targets_only():
    schema = transfer_schema(("desk", "sales"))
    assert schema.parse('{"to": "desk"}') == {"to": "desk"}
    with pytest.raises(ArgumentsRefused):
        schema.parse('{"to": "+12025550188"}')


def test_names_are_reserved():
    assert {"end_call", "transfer_call", "search_memory", "spawn_task"} <= NAMES
