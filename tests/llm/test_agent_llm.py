import asyncio
from dataclasses import replace

import pytest

from gateway.agents import Agent
from gateway.llm.accounts import LlmAccounts
from gateway.llm.agent_llm import AgentLlm, build_agent_llms, close, keep_warm
from gateway.llm.anthropic import AnthropicUpstream
from gateway.llm.chat import ChatRequest, Finished
from gateway.llm.openai import OpenAiUpstream
from gateway.llm.openclaw import OpenClawUpstream
from gateway.settings import Secret
from tests.fakes.llm import FakeLlm
from tests.stage import until

KEY = Secret("test-key")
OLLAMA = {"url": "http://127.0.0.1:11434/v1", "model": "qwen3"}
REQUEST = ChatRequest(({"role": "user", "content": "Is it ready?"},))


@pytest.fixture
async def build():
    built = []

    def build(*entries, **accounts):
        known = dict.fromkeys(("anthropic_api_key", "xai_api_key", "openai_api_key", "openclaw_gateway_token"), KEY)
        accounts = LlmAccounts(**{**known, "openclaw_gateway_url": "http://127.0.0.1:18789", **accounts})
        agents = [Agent(f"agent-{number}", "", brain=brain) for number, brain in enumerate(entries)]
        built.append(build_agent_llms(agents, accounts))
        return built[-1]

    yield build
    for agent_llms in built:
        await close(agent_llms)


@pytest.mark.parametrize(
    ("agent", "redacts"),
    [
        (Agent("maya", "", brain=("xai",)), True),
        (Agent("maya", "", brain=("xai",), redact_brain=False), False),
        (Agent("maya", "", brain=("script",)), False),
    ],
)
async def test_secrets_are_removed_unless_the_agent_wants_them(agent, redacts):
    agent_llms = build_agent_llms([agent], LlmAccounts(xai_api_key=KEY))
    assert agent_llms["maya"].redacts is redacts
    await close(agent_llms)


# Entries


@pytest.mark.parametrize(
    "entry, kind, name, model",
    [
        ("anthropic", AnthropicUpstream, "anthropic", "claude-haiku-5-5"),
        ("anthropic/claude-sonnet-5-5", AnthropicUpstream, "anthropic", "claude-sonnet-5-5"),
        ("xai", OpenAiUpstream, "xai", "grok-4.3"),
        (" xai / grok-4.5 ", OpenAiUpstream, "xai", "grok-4.5"),
        ("openai", OpenAiUpstream, "openai", "gpt-5.4-mini"),
        ("openai/gpt-6-mini", OpenAiUpstream, "openai", "gpt-6-mini"),
        ("openclaw", OpenClawUpstream, "openclaw", "openclaw/main"),
        ("openclaw/barber", OpenClawUpstream, "openclaw", "openclaw/barber"),
        (OLLAMA, OpenAiUpstream, "127.0.0.1", "qwen3"),
        ({**OLLAMA, "name": "ollama"}, OpenAiUpstream, "ollama", "qwen3"),
    ],
)
async def test_entry_names_an_upstream(build, entry, kind, name, model):
    (upstream,) = build((entry,))["agent-0"].upstreams
    assert (type(upstream), upstream.name, upstream.model) == (kind, name, model)


async def test_agents_thoughts_become_its_brain():
    agent = Agent("maya", "", brain=("xai",), first_token_seconds=1.5, no_answer="Sorry?", language="de")
    agent_llms = build_agent_llms([agent, Agent("sam", "")], LlmAccounts(xai_api_key=KEY))
    assert agent_llms == {"maya": AgentLlm(agent_llms["maya"].upstreams, 1.5, agent.one_moment, "Sorry?", "de")}
    await close(agent_llms)


async def test_order_of_entries_is_kept(build):
    agent_llms = build(("openclaw", OLLAMA, "xai"))
    assert [upstream.name for upstream in agent_llms["agent-0"].upstreams] == ["openclaw", "127.0.0.1", "xai"]


async def test_equal_entries_share_an_upstream(build):
    agent_llms = build(("xai", OLLAMA), (dict(reversed(OLLAMA.items())), "xai/grok-4.5"))
    first, second = agent_llms["agent-0"].upstreams, agent_llms["agent-1"].upstreams
    assert first[1] is second[0]
    assert first[0] is not second[1]


@pytest.mark.parametrize("given", [{"api_key": "test-key"}, {"api_key_env": "MY_KEY"}])
async def test_compatible_server_gets_its_key_and_options(build, given):
    async with FakeLlm() as llm:
        entry = {"url": f"{llm.url}/v1", "model": "m", "options": {"top_k": 5}, **given}
        agent_llms = build((entry,), keys={"MY_KEY": Secret("test-key")})
        events = [event async for event in agent_llms["agent-0"].upstreams[0].answer(REQUEST, "")]
    assert events[-1] == Finished("stop")
    assert llm.requests[0].body["top_k"] == 5


# Warmth


class CountedUpstream:
    """Counts how often it was warmed."""

    name = model = "counted"

    def __init__(self):
        self.warmed = 0

    async def warm(self):
        self.warmed += 1


BRAIN = AgentLlm((), 1.0, "", "", "en")


async def test_connection_is_warm_for_the_first_answer(build):
    async with FakeLlm() as llm:
        agent_llms = build(({"url": f"{llm.url}/v1", "model": "m", "api_key": "test-key"},))
        [upstream] = agent_llms["agent-0"].upstreams
        await upstream.warm()
        async for _ in upstream.answer(REQUEST, ""):
            pass
    assert llm.connections == 1


async def test_upstreams_are_kept_warm_while_calls_are_live():
    shared, other = CountedUpstream(), CountedUpstream()
    agent_llms = {"maya": replace(BRAIN, upstreams=(shared,)), "sam": replace(BRAIN, upstreams=(shared, other))}
    live, looks = False, 0

    def is_live():
        nonlocal looks
        looks += 1
        return live

    warming = asyncio.create_task(keep_warm(agent_llms, is_live, every=0.001, look=0.001))
    await until(lambda: looks > 10)
    assert (shared.warmed, other.warmed) == (1, 1)
    live = True
    await until(lambda: min(shared.warmed, other.warmed) > 3)
    warming.cancel()


async def test_language_model_that_is_made_later_is_kept_warm():
    agent_llms, upstream = {}, CountedUpstream()
    warming = asyncio.create_task(keep_warm(agent_llms, lambda: True, every=0.001, look=0.001))
    await asyncio.sleep(0)
    agent_llms["maya"] = replace(BRAIN, upstreams=(upstream,))
    await until(lambda: upstream.warmed > 1)
    warming.cancel()


def agent(**fields):
    return Agent("maya", "You are Maya.", **fields)


@pytest.mark.parametrize(
    "accounts, name",
    [
        ({}, "script"),
        ({"xai_api_key": Secret("k")}, "xai"),
        ({"xai_api_key": Secret("k"), "anthropic_api_key": Secret("k")}, "anthropic"),
    ],
)
async def test_engine_without_a_model_gets_one(accounts, name):
    agent_llms = build_agent_llms([agent()], LlmAccounts(**accounts), engine_has_llm=lambda agent: False)
    [upstream] = agent_llms["maya"].upstreams
    assert (upstream.name, agent_llms["maya"].opens) == (name, name == "script")
    await close(agent_llms)


def test_configured_model_is_used():
    agent_llms = build_agent_llms(
        [agent(brain=("script",))], LlmAccounts(anthropic_api_key=Secret("k")), engine_has_llm=lambda agent: True
    )
    assert [upstream.name for upstream in agent_llms["maya"].upstreams] == ["script"]
