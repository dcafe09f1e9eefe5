import asyncio
import textwrap

import pytest

from gateway.agents import Agent
from gateway.errors import SettingsError, StoreUnavailable
from gateway.memory.access import MemoryAccess
from gateway.memory.identity import RepeatCallerSettings
from gateway.session import TrustLevel
from gateway.tools.builtin import SEARCH_MEMORY, Builtin
from gateway.tools.executor import CallTools, NoState, ToolLoader, ToolTimeouts, load_modules
from gateway.tools.remote import RemoteTimeouts, RemoteTools

pytestmark = pytest.mark.virtual_time

CALLER = "+12025550143"
KEEPS = RepeatCallerSettings(state_keys=frozenset({"day"}))
TIMEOUTS = ToolTimeouts()


class Store:
    """Personas and state; answers at once, not at all, or with an error."""

    def __init__(self, *, hangs: bool = False, fails: bool = False) -> None:
        self.hangs = hangs
        self.fails = fails

    async def render(self, names):
        await self._answer()
        return {name: f"{name} is kind." for name in names}

    async def load(self, agent, caller):
        await self._answer()
        return {"day": f"{agent} {caller}"}

    async def _answer(self):
        if self.fails:
            raise StoreUnavailable("the store is away")
        if self.hangs:
            await asyncio.Event().wait()


def one_builtin(agent, access):
    yield Builtin(SEARCH_MEMORY, None)


async def load(agent=None, *, modules=None, store=None, access=None, builtins=()) -> CallTools:
    store = store or Store()
    loader = ToolLoader(modules or {}, store, store, builtins, RemoteTools((), {}, RemoteTimeouts()), TIMEOUTS)
    return await loader.load(agent or Agent("maya", "You are Maya."), access or MemoryAccess(caller=CALLER))


async def test_agent_without_tools_has_none():
    tools = await load()
    assert (tools.tool_module.tools, tools.memory, tools.personas, tools.load_memory) == ({}, {}, {}, None)


async def test_functions_and_builtins_are_loaded(tmp_path):
    path = tmp_path / "bistro.py"
    path.write_text(textwrap.dedent("def book(day: str): ..."))
    agent = Agent("maya", "You are Maya.", functions=path)
    tools = await load(agent, modules=load_modules([agent]), builtins=[one_builtin])
    assert list(tools.tool_module.tools) == ["book"]
    assert [one.schema for one in tools.builtins] == [SEARCH_MEMORY]


async def test_disabled_tools_are_named(tmp_path):
    path = tmp_path / "bistro.py"
    path.write_text("def book(day: str): ...\ndef cancel(day: str): ...\ndef start_function(conv): ...")
    agent = Agent("maya", "", functions=path, disabled_tools=["cancel", "search_memory", "end_call"])
    tools = await load(agent, modules=load_modules([agent]), builtins=[one_builtin])
    assert tools.disabled == {"cancel", "search_memory", "end_call"}
    assert tools.tool_module.start is not None


def test_function_named_like_a_builtin_is_refused(tmp_path):
    path = tmp_path / "bistro.py"
    path.write_text("def end_call(): ...")
    with pytest.raises(SettingsError, match="end_call"):
        load_modules([Agent("maya", "You are Maya.", functions=path)])


def test_function_named_like_a_tool_of_gateway_toml_is_refused(tmp_path):
    path = tmp_path / "bistro.py"
    path.write_text("def order_status(): ...")
    tool = {"http": "GET https://shop.example.com/", "name": "order_status", "description": "It."}
    with pytest.raises(
        SettingsError, match=r"^bistro.py, line 1, order_status: the gateway has a function of this name$"
    ):
        load_modules([Agent("maya", "You are Maya.", functions=path, tools=[tool])])


async def test_personas_of_the_prompt_are_loaded():
    tools = await load(Agent("maya", "You know {{persona:ana}}."))
    assert tools.personas == {"ana": "ana is kind."}


async def test_state_is_loaded_for_agents_that_keep_some():
    agent = Agent("maya", "You are Maya.", repeat_caller=KEEPS)
    assert (await load(agent)).memory == {"day": f"maya {CALLER}"}


async def test_state_follows_the_caller():
    access = MemoryAccess(caller=CALLER)
    tools = await load(Agent("maya", "You are Maya.", repeat_caller=KEEPS), access=access)
    access.caller = "state:customer:7"
    assert await tools.load_memory() == {"day": "maya state:customer:7"}


@pytest.mark.parametrize("access", [MemoryAccess(), MemoryAccess(TrustLevel.SUMMARIES, caller=CALLER)])
async def test_state_needs_a_trusted_caller(access):
    assert (await load(Agent("maya", "You are Maya.", repeat_caller=KEEPS), access=access)).memory == {}


@pytest.mark.parametrize("store", [Store(hangs=True), Store(fails=True)])
async def test_call_starts_without_a_store_that_does_not_answer(store, caplog):
    started = asyncio.get_running_loop().time()
    tools = await load(Agent("maya", "You know {{persona:ana}}.", repeat_caller=KEEPS), store=store)
    assert (tools.memory, tools.personas) == ({}, {})
    assert await tools.load_memory() is None
    assert asyncio.get_running_loop().time() - started <= 3 * TIMEOUTS.load
    assert caplog.messages == [
        "personas could not be loaded",
        "caller's state could not be loaded",
        "caller's state could not be loaded",
    ]


async def test_gateway_without_memory_keeps_no_state():
    assert await NoState().load("maya", CALLER) == {}
