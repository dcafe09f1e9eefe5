"""Our language model for ElevenLabs' voice: whole conversations between its simulator, the gateway and a model."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from gateway.history.api_tokens import TokenScope, TokenTable
from gateway.history.stores import open_stores
from tests.fakes.elevenlabs import AGENT_ID, END_CALL, SKIP_TURN, FakeElevenLabs, LlmProblem, conversation
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Answer, Pace, Request, ToolCall
from tests.stage import ADMIN, CALLER, PATIENCE, Stage, make_carrier, staged, until

OTHER = "+12025550188"
NOTE = {"content": "Likes tea."}
AGENTS = """
[agents.maya]
prompt = "p.md"
elevenlabs_agent = "{agent}"
brain = {{ url = "{url}/v1", model = "llama3.2", api_key = "test-key" }}
functions = "functions.py"
one_moment = "One moment."
first_token_seconds = {patience}

[agents.maya.memory.repeat_caller]
state_keys = ["booked"]

[agents.sam]
prompt = "p.md"
"""
NO_BRAIN = "has no language model of its own; set its brain in gateway.toml"
FUNCTIONS = """
from pathlib import Path

from gateway import requires

LOG = Path(__file__).with_name("log")


def book(conv, day: str) -> str:
    \"\"\"Book a day.\"\"\"
    with LOG.open("a") as log:
        log.write(f"{day} {conv.caller} {conv.trust} {conv.memory.get('booked')}\\n")
    conv.state["booked"] = day
    return f"booked {day}"


def finish(conv) -> str:
    \"\"\"Nothing is left to do.\"\"\"
    conv.hang_up()
    return "finished"


@requires("everything")
def balance(conv) -> str:
    \"\"\"The caller's balance.\"\"\"
    return "the balance is 12"
"""


@dataclass
class Scene:
    """ElevenLabs with keys of two agents, the gateway and maya's language model."""

    stage: Stage
    elevenlabs: FakeElevenLabs
    llm: FakeLlm
    keys: dict[str, str]
    log: Path

    async def ring(self, caller: str, call_sid: str) -> str:
        """A call begins. Returns its token."""
        await self.elevenlabs.rings(caller, call_sid)
        token: str = self.elevenlabs.variables["secret__call_token"]
        return token

    async def asks(self, said: str, **options) -> str:
        return (await self.elevenlabs.thinks(said, **{"key": self.keys["maya"]} | options)).text

    @property
    def seen(self) -> str:
        """All that the model saw in its last request."""
        return str(self.llm.requests[-1].body)

    def tool_results(self, request: Request) -> list[str]:
        return [message["content"] for message in request.body["messages"] if message["role"] == "tool"]


@contextlib.asynccontextmanager
async def _scene(folder: Path, patience: float = 20.0) -> AsyncIterator[Scene]:
    (folder / "p.md").write_text("You answer the phone.")
    (folder / "functions.py").write_text(FUNCTIONS)
    async with FakeElevenLabs().running() as elevenlabs, FakeLlm() as llm:
        (folder / "gateway.toml").write_text(AGENTS.format(agent=AGENT_ID, url=llm.url, patience=patience))
        # Else the simulated model would write the summary, and know nothing of the call.
        given = {"ALLOWED_CALLERS": f"{CALLER},*", "SUMMARY_PROVIDER": "extractive", **elevenlabs.settings()}
        async with staged(folder, make_carrier("twilio"), **given) as stage:
            elevenlabs.gateway_url = stage.url
            stores = await open_stores(folder / "data", None)
            try:
                tokens = TokenTable(stores.memory)
                keys = {name: (await tokens.create(TokenScope.LLM, agent=name))[1] for name in ("maya", "sam")}
                keys["read"] = (await tokens.create(TokenScope.READ))[1]
            finally:
                await stores.close()
            yield Scene(stage, elevenlabs, llm, keys, folder / "log")


@pytest.fixture
async def scene(tmp_path: Path) -> AsyncIterator[Scene]:
    async with _scene(tmp_path) as made:
        yield made


async def _remembers(scene: Scene, caller: str, said: str) -> None:
    data = conversation(f"conv_{caller[-4:]}", ("user", said), number=caller)
    assert (await scene.elevenlabs.report(data)).status_code == 200
    await scene.stage.idle()


# Whose memory


async def test_call_token_decides_whose_memory_it_is(scene: Scene) -> None:
    """Numbers in headers and body are claims: the simulator always claims to be CALLER."""
    await _remembers(scene, CALLER, "My boat is called Albatross.")
    token = await scene.ring(CALLER, "CA01")
    scene.llm.answers("[laughs] It is the **Albatross**.")
    assert await scene.asks("What is my boat called?") == "[laughs] It is the **Albatross**."
    assert "Albatross" in scene.seen
    assert not {"elevenlabs_extra_body", "user_id"} & set(scene.llm.requests[-1].body) and token not in scene.seen
    for wrong in ("", "wrong", f"{token}x", scene.keys["maya"]):
        await scene.asks("What is my boat called?", headers={"X-Call-Token": wrong})
        assert "Albatross" not in scene.seen and CALLER not in scene.seen
    await scene.ring(OTHER, "CA02")
    await scene.asks("What is my boat called?")
    assert "Albatross" not in scene.seen


async def test_call_token_dies_with_the_report(scene: Scene, tmp_path: Path) -> None:
    await _remembers(scene, CALLER, "My boat is called Albatross.")
    token = await scene.ring(CALLER, "CAconv_1")
    await scene.asks("What is my boat called?")
    assert "Albatross" in scene.seen
    variables = {"dynamic_variables": scene.elevenlabs.variables}
    said = [("user", "What is my boat called?")]
    data = conversation("conv_1", *said, number=CALLER, conversation_initiation_client_data=variables)
    assert (await scene.elevenlabs.report(data)).status_code == 200
    await scene.stage.idle()
    await scene.asks("What is my boat called?", headers={"X-Call-Token": token})
    assert "Albatross" not in scene.seen
    paths = await asyncio.to_thread(lambda: [path for path in tmp_path.rglob("*") if path.is_file()])
    left = b"".join(path.read_bytes() for path in paths)
    assert token.encode() not in left
    # Asked again for a call that is over, initiation brings no token back to life.
    await scene.ring(CALLER, "CAconv_1")
    await scene.asks("What is my boat called?")
    assert "Albatross" not in scene.seen


# The key


async def test_key_opens_its_agent_and_nothing_else(scene: Scene) -> None:
    for key, problem in [
        ("wrong", "status 401: missing or wrong token"),
        (scene.keys["read"], "status 403: this token has the scope read; the scope llm or admin is needed"),
        (ADMIN, "status 403: create a token for this: gateway token create --scope llm --agent NAME"),
        (
            scene.keys["sam"],
            "status 503: the agent sam has no language model of its own; set its brain in gateway.toml",
        ),
    ]:
        with pytest.raises(LlmProblem) as raised:
            await scene.asks("Hello?", key=key)
        assert str(raised.value) == problem
    assert scene.llm.requests == []
    bearer = {"Authorization": f"Bearer {scene.keys['maya']}", "X-API-Key": scene.keys["maya"]}
    for path in ("/v1/sessions", "/v1/query", "/mcp", "/v1/chat/completions", "/v1/outbound/call", "/v1/phone"):
        method = "GET" if path == "/v1/sessions" else "POST"
        response = await scene.stage.http.request(method, path, headers=bearer, json={})
        assert response.status_code in (401, 403), path


# Memory by MCP


@contextlib.asynccontextmanager
async def _mcp(scene: Scene, **headers: str) -> AsyncIterator[Client]:
    """The official client, with the headers that the agent's MCP server is configured with."""
    async with (
        httpx2.AsyncClient(headers=headers, timeout=PATIENCE) as http,
        Client(streamable_http_client(f"{scene.stage.url}/mcp", http_client=http)) as client,
    ):
        yield client


async def test_call_token_opens_the_callers_memory_by_mcp(scene: Scene) -> None:
    await _remembers(scene, CALLER, "My boat is called Albatross.")
    await _remembers(scene, OTHER, "My boat is called Pelican.")
    token = await scene.ring(CALLER, "CAconv_1")
    for headers in ({"Authorization": token}, {"Authorization": f"Bearer {token}"}, {"X-Call-Token": token}):
        async with _mcp(scene, **headers) as client:
            tools = {tool.name: tool.input_schema["properties"] for tool in (await client.list_tools()).tools}
            assert set(tools) == {"memory_search", "memory_remember", "memory_pins", "memory_pin", "memory_unpin"}
            assert not any({"caller", "agent"} & set(properties) for properties in tools.values())
            # Another number in the arguments, or in `_meta`, changes nothing.
            asked = {"query": "boat", "caller": OTHER, "agent": "sam"}
            found = await client.call_tool("memory_search", asked, meta={"caller": OTHER})
            assert "Albatross" in str(found) and "Pelican" not in str(found)
            assert (await client.call_tool("memory_forget", {"caller": CALLER, "agent": "maya"})).is_error
            assert (await client.call_tool("persona", {"action": "list"})).is_error
    data = conversation("conv_1", ("user", "Hello."), number=CALLER)
    assert (await scene.elevenlabs.report(data)).status_code == 200
    await scene.stage.idle()
    assert await _mcp_status(scene, token) == 401


async def test_uncertain_caller_gets_nothing_by_mcp(scene: Scene) -> None:
    await _remembers(scene, OTHER, "My boat is called Pelican.")
    async with _mcp(scene, Authorization=await scene.ring(OTHER, "CA01")) as client:
        for tool, given in (("memory_search", {"query": "boat"}), ("memory_pins", {}), ("memory_remember", NOTE)):
            result = await client.call_tool(tool, given)
            assert result.is_error and "not certain" in str(result.content) and "Pelican" not in str(result)
    assert [await _mcp_status(scene, wrong) for wrong in ("wrong", scene.keys["read"])] == [401, 401]
    assert await _mcp_status(scene, f"Bearer {scene.keys['maya']}") == 403


async def _mcp_status(scene: Scene, authorization: str) -> int:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    headers = {"Authorization": authorization, "Accept": "application/json, text/event-stream"}
    return (await scene.elevenlabs.http.post(f"{scene.stage.url}/mcp", json=body, headers=headers)).status_code


# Tools


async def test_their_tools_are_passed_through(scene: Scene) -> None:
    calls = ToolCall("end_call", '{"reason": "done"}'), ToolCall("skip_turn", "{}")
    scene.llm.answers(Answer("Goodbye.", tools=calls), when="Bye")
    answer = await scene.elevenlabs.thinks("Bye.", key=scene.keys["maya"], tools=[END_CALL, SKIP_TURN])
    assert (answer.text, answer.calls) == ("Goodbye.", [("end_call", '{"reason": "done"}')])  # one at a time
    assert answer.usage
    # A tool that was not offered is not called.
    assert await scene.asks("Bye.") == "Goodbye."


async def test_our_functions_run_within_the_answer(scene: Scene) -> None:
    scene.llm.answers("It is booked.")
    scene.llm.answers(Answer("I will.", tools=(ToolCall("book", '{"day": "Monday"}'),)), when="Monday")
    scene.llm.answers("It is booked.", when="booked")
    await scene.ring(CALLER, "CAconv_1")
    answer = await scene.elevenlabs.thinks("Monday, please.", key=scene.keys["maya"], tools=[END_CALL])
    assert (answer.text, answer.calls) == ("I will. It is booked.", [])
    first, second = scene.llm.requests
    offered = [tool["function"]["name"] for tool in first.body["tools"]]
    assert offered == ["end_call", "book", "finish", "balance", "search_memory"]
    assert scene.tool_results(second) == ["booked Monday"]
    assert scene.log.read_text() == f"Monday {CALLER} everything None\n"
    # Broken off and asked again, a function does not run twice.
    await scene.elevenlabs.thinks("Monday, please.", key=scene.keys["maya"], tools=[END_CALL])
    assert scene.log.read_text().count("\n") == 1
    # Its state is the caller's, once the call is reported.
    data = conversation("conv_1", ("user", "Monday, please."), number=CALLER)
    assert (await scene.elevenlabs.report(data)).status_code == 200
    await scene.stage.idle()
    await scene.ring(CALLER, "CA02")
    scene.llm.answers(Answer(tools=(ToolCall("book", '{"day": "Friday"}'),)), when="Friday")
    scene.llm.answers("Moved.", when="booked Friday")
    assert await scene.asks("Friday instead.") == "Moved."
    assert scene.log.read_text().splitlines()[1] == f"Friday {CALLER} everything Monday"


async def test_functions_know_how_certain_the_caller_is(scene: Scene) -> None:
    scene.llm.answers(Answer(tools=(ToolCall("balance", "{}"), ToolCall("book", '{"day": "Monday"}'))), when="How much")
    scene.llm.answers("I see.", when="booked Monday")
    for caller, said in ((CALLER, "the balance is 12"), (OTHER, "not certain who the caller is")):
        await scene.ring(caller, f"CA{caller}")
        await scene.asks("How much?")
        assert said in scene.tool_results(scene.llm.requests[-1])[0]
    await scene.asks("How much?", headers={"X-Call-Token": ""})
    assert scene.log.read_text().splitlines() == [
        f"Monday {CALLER} everything None",
        f"Monday {OTHER} summaries None",
        "Monday  none None",
    ]


async def test_function_hangs_up_by_their_tool(scene: Scene) -> None:
    scene.llm.answers(Answer(tools=(ToolCall("finish", "{}"),)), when="That is all")
    scene.llm.answers("Goodbye.", when="finished")
    answer = await scene.elevenlabs.thinks("That is all.", key=scene.keys["maya"], tools=[END_CALL])
    assert (answer.text, [name for name, _ in answer.calls]) == ("Goodbye.", ["end_call"])
    assert await scene.asks("That is all.") == "Goodbye."  # not offered


async def test_model_that_only_calls_functions_is_stopped(scene: Scene) -> None:
    scene.llm.answers(Answer(tools=(ToolCall("book", '{"day": "Monday"}'),)))
    answer = await scene.elevenlabs.thinks("Monday.", key=scene.keys["maya"], tools=[END_CALL])
    assert answer.text and answer.calls == []
    assert len(scene.llm.requests) == 6
    assert scene.llm.requests[-1].body["tool_choice"] == "none"


# Time


async def test_dropped_answer_stops_the_model(scene: Scene) -> None:
    scene.llm.pace = Pace(hangs="after first token")
    scene.llm.answers("It is a long story.")
    request = scene.elevenlabs.llm_request("Tell me.", key=scene.keys["maya"])
    async with scene.elevenlabs.http.stream(**request) as response:
        async for line in response.aiter_lines():
            if '"content":"' in line and '"content":""' not in line:
                break
    await until(lambda: scene.llm.requests[0].disconnected_at)
    assert not scene.log.exists()


async def test_buffer_words_end_in_a_blank(tmp_path: Path) -> None:
    async with _scene(tmp_path, patience=0.05) as scene:
        scene.llm.pace = Pace(before_first_token=0.4)
        assert await scene.asks("Are you there?") == "One moment... It is ready."
