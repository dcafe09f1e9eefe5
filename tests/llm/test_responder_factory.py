"""Who thinks for a call, at its own node and at another one."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from gateway.agents import Agent
from gateway.cluster.directory import CallDirectory, ClusterTimeouts
from gateway.cluster.node import SingleNode
from gateway.llm.agent_llm import AgentLlm
from gateway.llm.responder_factory import BearerDirectory, ResponderFactory
from gateway.memory.access import AccessChange, MemoryAccess
from gateway.session import TrustLevel
from gateway.settings import Secret
from tests.fakes.shared_store import FakeSharedStore

MAYA = Agent("maya", "You are Maya.\n{{memory}}")
MEDIA_URL = "wss://voice.example.com/prefix/twilio/media"
CALLER = "+12025550143"


def factory(bearers: BearerDirectory | None = None, public_url: str = "") -> ResponderFactory:
    brain = AgentLlm((), first_token_seconds=1, one_moment="One moment.", sorry="Sorry.", language="en")
    return ResponderFactory(
        {"maya": MAYA}.get, {"maya": brain}, Secret("secret"), public_url=public_url, bearers=bearers or SingleNode()
    )


@pytest.fixture
async def directory() -> AsyncIterator[tuple[CallDirectory, CallDirectory]]:
    """Two nodes that share a store."""
    store = FakeSharedStore()
    made = [CallDirectory(store, ClusterTimeouts()) for _ in range(2)]
    running = [asyncio.create_task(one.run()) for one in made]
    yield made[0], made[1]
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


async def test_engine_reaches_us_where_the_carrier_does() -> None:
    call_llm = factory().open(MAYA, CALLER, MEDIA_URL, MemoryAccess(caller=CALLER))
    assert call_llm is not None
    assert call_llm.endpoint.url == "https://voice.example.com/prefix/v1/chat/completions"


@pytest.mark.parametrize(
    ("public_url", "host", "url"),
    [
        ("", "127.0.0.1:8000", "http://127.0.0.1:8000/v1/chat/completions"),
        ("", "localhost:8000", "http://localhost:8000/v1/chat/completions"),
        ("", "[::1]:8000", "http://[::1]:8000/v1/chat/completions"),
        ("http://gateway:8000", "gateway:8000", "http://gateway:8000/v1/chat/completions"),
        ("https://127.0.0.1:8443", "127.0.0.1:8443", "https://127.0.0.1:8443/v1/chat/completions"),
        ("", "10.0.0.7:8000", "https://10.0.0.7:8000/v1/chat/completions"),
    ],
)
async def test_engine_on_this_machine_needs_no_tls(public_url: str, host: str, url: str) -> None:
    call_llm = factory(public_url=public_url).open(
        MAYA, CALLER, f"wss://{host}/twilio/media", MemoryAccess(caller=CALLER)
    )
    assert call_llm is not None
    assert call_llm.endpoint.url == url


async def test_agent_without_brain_leaves_thinking_to_the_engine() -> None:
    assert factory().open(Agent("ben", "You are Ben."), CALLER, MEDIA_URL, MemoryAccess(caller=CALLER)) is None


async def test_bearer_is_good_until_its_call_ends() -> None:
    responders = factory()
    call_llm = responders.open(MAYA, CALLER, MEDIA_URL, MemoryAccess(caller=CALLER))
    assert call_llm is not None
    assert await responders.endpoint_tokens.find(call_llm.endpoint.bearer) is call_llm.responder
    responders.close(call_llm)
    assert await responders.endpoint_tokens.find(call_llm.endpoint.bearer) is None


async def test_only_trusted_calls_continue_the_callers_conversation(
    directory: tuple[CallDirectory, CallDirectory],
) -> None:
    """What a provider stores of a caller is used, and added to, at the highest level only."""
    here, there = (factory(one) for one in directory)
    trusted = here.open(MAYA, CALLER, MEDIA_URL, MemoryAccess(caller=CALLER))
    access = MemoryAccess(TrustLevel.SUMMARIES, caller=CALLER)
    first, second = (here.open(MAYA, CALLER, MEDIA_URL, access) for _ in range(2))
    assert trusted is not None and first is not None and second is not None
    keys = {trusted.responder.caller_key, first.responder.caller_key, second.responder.caller_key}
    assert len(keys) == 3 and "" not in keys
    await directory[0].flushed()
    elsewhere = await there.endpoint_tokens.find(first.endpoint.bearer)
    assert elsewhere is not None and elsewhere.caller_key == first.responder.caller_key
    access.raise_level(TrustLevel.EVERYTHING)
    here.memory_changed(first, MAYA, access, AccessChange.LEVEL_RAISED)
    assert first.responder.caller_key == trusted.responder.caller_key


async def test_question_may_come_to_another_node(directory: tuple[CallDirectory, CallDirectory]) -> None:
    here, there = (factory(one) for one in directory)
    access = MemoryAccess(caller=CALLER)
    call_llm = here.open(MAYA, CALLER, MEDIA_URL, access)
    assert call_llm is not None
    await directory[0].flushed()
    responder = await there.endpoint_tokens.find(call_llm.endpoint.bearer)
    assert responder is not None and responder.agent == "maya"
    assert await there.endpoint_tokens.find(call_llm.endpoint.bearer) is responder
    assert await there.endpoint_tokens.find("another-token") is None
    here.memory_changed(call_llm, MAYA, access, AccessChange.REVOKED)
    await directory[0].flushed()
    without_caller = await there.endpoint_tokens.find(call_llm.endpoint.bearer)
    assert without_caller is not None and without_caller is not responder and without_caller.caller_key == ""
    here.close(call_llm)
    await directory[0].flushed()
    assert await there.endpoint_tokens.find(call_llm.endpoint.bearer) is None
