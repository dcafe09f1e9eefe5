import asyncio
import contextlib
import json

import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse

from gateway import extras
from gateway.agents import Agent
from gateway.errors import SettingsError
from gateway.session import TrustLevel, VoiceSession
from gateway.settings import Secret
from gateway.tools.mcp_client import ListedTool
from gateway.tools.remote import (
    MOST_RESPONSE_BYTES,
    HttpTool,
    McpTools,
    RemoteTimeouts,
    RemoteToolFailed,
    RemoteTools,
    http_tool_names,
)
from gateway.tools.remote_settings import HttpToolSettings, McpSettings
from gateway.tools.schema import MOST_RESULT_CHARACTERS, ArgumentsRefused, as_content
from tests.fakes.tool_servers import TOKEN, FakeToolServer

CALLER = "+12025550143"
KEYS = {"SHOP_TOKEN": Secret(TOKEN)}


@pytest.fixture
async def shop():
    async with FakeToolServer().running() as running:
        yield running


@pytest.fixture
async def http():
    async with httpx.AsyncClient() as client:
        yield client


def http_tool(http, request, parameters=None, **options):
    settings = HttpToolSettings(http=request, name="shop", description="It.", parameters=parameters or {}, **options)
    return HttpTool(settings, KEYS, http, "tools[0]").tool


async def use(tool, session=None, **arguments):
    session = session or VoiceSession("maya", CALLER, "twilio")
    return await tool.handler(session, tool.schema.parse(json.dumps(arguments)))


# HTTP


async def test_query_of_a_get_request(shop, http):
    parameters = {
        "order": "its number",
        "qty": {"type": "number", "required": False},
        "fast": {"type": "boolean", "required": False},
    }
    tool = http_tool(http, f"GET {shop.url}/orders?v=2", parameters)
    assert await use(tool, order="a&b=c", qty=2, fast=True) == '{"status":"on its way"}'
    await use(tool, order="7")
    first, second = shop.requests
    assert first[:3] == ("GET", "/orders?v=2&qty=2&fast=true&order=a%26b%3Dc", None)
    assert second[:3] == ("GET", "/orders?v=2&order=7", None)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
async def test_body_of_other_requests(shop, http, method):
    parameters = {"order": "its number", "qty": {"type": "integer"}, "price": {"type": "number"}}
    tool = http_tool(http, f"{method} {shop.url}/orders/{{order}}", parameters)
    await use(tool, order="7", qty=2, price=1.5)
    assert shop.requests[0][:3] == (method, "/orders/7", {"qty": 2, "price": 1.5})


async def test_values_in_the_path_are_quoted(shop, http):
    tool = http_tool(
        http, f"GET {shop.url}/orders/{{order}}/items/{{item}}", {"order": "its number", "item": "its name"}
    )
    await use(tool, order="../../admin?x=1#y", item="{order} ü")
    assert shop.requests[0][1] == "/orders/..%2F..%2Fadmin%3Fx%3D1%23y/items/%7Border%7D%20%C3%BC"


@pytest.mark.parametrize("order", ["", ".", ".."])
async def test_value_can_not_change_the_path(shop, http, order):
    tool = http_tool(http, f"DELETE {shop.url}/orders/{{order}}/items", {"order": "its number"})
    with pytest.raises(ArgumentsRefused):
        await use(tool, order=order)
    assert shop.requests == []


async def test_definition_shows_what_the_agent_may_set(shop, http):
    parameters = {
        "size": {"options": ["small", "large"], "description": "which one"},
        "note": {"required": False},
        "caller": {"from": "caller"},
        "shop": {"constant": "berlin"},
    }
    tool = http_tool(http, f"POST {shop.url}/orders", parameters, speculative=True)
    assert tool.schema.definition.parameters == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "size": {"type": "string", "enum": ["small", "large"], "description": "which one"},
            "note": {"type": "string"},
        },
        "required": ["size"],
    }
    assert tool.schema.definition.speculative
    with pytest.raises(ArgumentsRefused, match="caller: Extra inputs are not permitted"):
        await use(tool, size="small", caller="+12025550199")


async def test_bound_values_are_sent(shop, http):
    parameters = {
        "who": {"from": "caller"},
        "agent": {"from": "agent"},
        "call": {"from": "session"},
        "shop": {"constant": "berlin"},
        "key": {"constant": "env:SHOP_TOKEN"},
    }
    tool = http_tool(http, f"POST {shop.url}/orders", parameters)
    session = VoiceSession("maya", "customer:7", "twilio", number=CALLER)
    await use(tool, session)
    sent = {"who": CALLER, "agent": "maya", "call": session.id, "shop": "berlin", "key": TOKEN}
    assert shop.requests[0][2] == sent
    assert tool.requires is TrustLevel.EVERYTHING


async def test_withheld_number_is_not_sent(shop, http):
    tool = http_tool(http, f"GET {shop.url}/orders", {"who": {"from": "caller"}})
    with pytest.raises(RemoteToolFailed, match="the caller's number is not known"):
        await use(tool, VoiceSession("maya", "", "twilio"))
    assert shop.requests == []


async def test_secrets_are_in_headers(shop, http):
    headers = {"X-Api-Key": "env:SHOP_TOKEN", "X-Shop": "berlin"}
    await use(http_tool(http, f"GET {shop.url}/", headers=headers, api_key_env="SHOP_TOKEN"))
    sent = shop.requests[0][3]
    assert (sent["authorization"], sent["x-api-key"], sent["x-shop"]) == (f"Bearer {TOKEN}", TOKEN, "berlin")


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        (PlainTextResponse("on its way"), "on its way"),
        (Response(status_code=204), None),
        (Response("größe".encode("latin-1"), media_type="text/plain; charset=latin-1"), "größe"),
        (Response(b"\xff", headers={"Content-Type": "text/plain; charset=klingon"}), "�"),
    ],
)
async def test_text_is_the_result(shop, http, answer, result):
    shop.answer = answer
    assert await use(http_tool(http, f"GET {shop.url}/")) == result


@pytest.mark.parametrize(
    ("answer", "message", "kind"),
    [
        (JSONResponse({"secret": 1}, 404), "the server answered with status 404", "status 404"),
        (PlainTextResponse("oops", 500), "the server answered with status 500", "status 500"),
        (Response(b"x", media_type="image/png"), "the server answered with image/png, which is not text", "not text"),
        (
            PlainTextResponse("x", headers={"Content-Encoding": "gzip"}),
            "the server sent a compressed answer",
            "compressed",
        ),
    ],
)
async def test_other_answers_are_failures(shop, http, answer, message, kind):
    shop.answer = answer
    with pytest.raises(RemoteToolFailed) as raised:
        await use(http_tool(http, f"GET {shop.url}/"))
    assert (str(raised.value), raised.value.kind) == (message, kind)


async def test_redirect_is_not_followed(shop, http):
    with pytest.raises(RemoteToolFailed, match="status 307"):
        await use(http_tool(http, f"GET {shop.url}/moved"))
    assert shop.requests == []


async def test_server_that_is_away(http):
    with pytest.raises(RemoteToolFailed, match="^the server can't be reached$") as raised:
        await use(http_tool(http, "GET http://127.0.0.1:1/"))
    assert raised.value.kind == "ConnectError"


async def test_endless_answer_is_cut_off(shop, http):
    sent = 0

    async def endless():
        nonlocal sent
        while True:
            sent += 1000
            yield "x" * 1000
            await asyncio.sleep(0)

    shop.answer = StreamingResponse(endless(), media_type="text/plain")
    result = await use(http_tool(http, f"GET {shop.url}/"))
    assert len(result) > MOST_RESPONSE_BYTES
    assert as_content(result) == "x" * MOST_RESULT_CHARACTERS + " … (cut off here)"


async def test_cancelled_request_is_closed(shop, http):
    shop.hold = asyncio.Event()
    task = asyncio.create_task(use(http_tool(http, f"GET {shop.url}/")))
    while not shop.requests:
        await asyncio.sleep(0.01)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    await asyncio.wait_for(shop.abandoned.wait(), 10)


# MCP


class Connection:
    """A connected server with these tools; keeps what is called."""

    is_away = False

    def __init__(self, *names, properties=None, **schema):
        schema = {"type": "object", "properties": properties or {}, **schema}
        self.tools = tuple(ListedTool(name, f"The tool {name}.", schema) for name in names)
        self.calls = []

    async def call(self, name, arguments, meta):
        self.calls.append((name, arguments, meta))
        return "found"


def mcp_tools(connection, **options):
    settings = McpSettings(mcp="https://crm.example.com/mcp", **options)
    return list(McpTools(settings, KEYS, "tools[0]").tools(connection))


def names_of(tools):
    return [tool.schema.definition.name for tool in tools]


def test_allow_list_and_prefix():
    connection = Connection("orders.find", "orders.delete", "help")
    assert names_of(mcp_tools(connection)) == ["orders_find", "orders_delete", "help"]
    assert names_of(mcp_tools(connection, tools=["orders.find"], prefix="crm_")) == ["crm_orders_find"]


async def test_server_gets_its_own_name_and_the_call():
    connection = Connection("orders.find")
    [tool] = mcp_tools(connection, prefix="crm_")
    session = VoiceSession("maya", CALLER, "twilio", trust=TrustLevel.SUMMARIES)
    assert await use(tool, session, order="7") == "found"
    meta = {"voice-gateway/agent": "maya", "voice-gateway/session": session.id, "voice-gateway/trust": "summaries"}
    assert connection.calls == [("orders.find", {"order": "7"}, meta)]


@pytest.mark.parametrize(
    ("level", "send_caller", "sent"),
    [
        (TrustLevel.EVERYTHING, True, CALLER),
        (TrustLevel.EVERYTHING, False, None),
        (TrustLevel.SUMMARIES, True, None),
    ],
)
async def test_number_of_a_certain_caller_may_be_sent(level, send_caller, sent):
    connection = Connection("find")
    [tool] = mcp_tools(connection, send_caller=send_caller)
    await use(tool, VoiceSession("maya", CALLER, "twilio", trust=level))
    assert connection.calls[0][2].get("voice-gateway/caller") == sent


async def test_bound_parameters_replace_those_of_the_server():
    properties = {"phone": {"type": "string"}, "order": {"type": "string"}}
    connection = Connection("find", properties=properties, required=["phone", "order"])
    parameters = {"phone": {"from": "caller"}, "tenant": {"constant": "acme"}}
    [tool] = mcp_tools(connection, parameters=parameters)
    definition = tool.schema.definition.parameters
    assert definition == {"type": "object", "properties": {"order": {"type": "string"}}, "required": ["order"]}
    await use(tool, order="7", phone="+12025550199")
    assert connection.calls[0][1] == {"order": "7", "phone": CALLER}  # the tool has no tenant
    assert tool.requires is TrustLevel.EVERYTHING


# All agents


def agent(*tools, name="maya"):
    return Agent(name, "You are Maya.", tools=tools)


SHOP = {"http": "GET https://shop.example.com/", "name": "shop", "description": "It."}
CRM = {"mcp": "https://crm.example.com/mcp"}


def remote(*agents, **connections):
    made = RemoteTools(agents, KEYS, RemoteTimeouts())
    for server in (server for servers in made._mcp_tools.values() for server in servers):
        host = server.settings.host.partition(".")[0]
        made._connections[server.settings.mcp, frozenset(server.headers.items())] = connections[host]
    return made


async def test_agents_have_their_own_tools():
    maya, tom = agent(SHOP, CRM), agent(name="tom")
    tools = remote(maya, tom, crm=Connection("find"))
    assert names_of(tools.tools(maya, ())) == ["shop", "find"]
    assert tools.tools(tom, ()) == ()


async def test_clashing_names_are_left_out_and_logged_once(caplog):
    maya = agent(SHOP, CRM, {"mcp": "https://more.example.com/mcp"})
    long = "x" * 65
    tools = remote(maya, crm=Connection("shop", "end_call", "book", "find", long), more=Connection("find", "help"))
    for _ in range(2):
        assert names_of(tools.tools(maya, {"book"})) == ["shop", "find", "help"]
    assert [(line.server, line.function, line.reason) for line in caplog.records] == [
        ("crm.example.com", "shop", "another tool has this name; set a prefix"),
        ("crm.example.com", "end_call", "another tool has this name; set a prefix"),
        ("crm.example.com", "book", "another tool has this name; set a prefix"),
        ("crm.example.com", long[:64], "its name is too long"),
        ("more.example.com", "find", "another tool has this name; set a prefix"),
    ]


async def test_server_that_never_answered_has_no_tools():
    maya = agent(CRM)
    tools = RemoteTools([maya], {}, RemoteTimeouts())
    assert tools.tools(maya, ()) == ()
    assert tools.health == {"tools": "away"}


def test_health_names_servers_only_if_there_are_some():
    assert RemoteTools([agent(SHOP)], {}, RemoteTimeouts()).health == {}
    assert remote(agent(CRM), crm=Connection("find")).health == {"tools": "ok"}


def test_name_of_the_gateway_is_refused():
    with pytest.raises(SettingsError) as raised:
        RemoteTools([agent({**SHOP, "name": "end_call"})], {}, RemoteTimeouts())
    assert (
        str(raised.value) == "gateway.toml, [agents.maya]: tools[0].name: the gateway has a tool end_call; rename yours"
    )


def test_missing_variable_is_named():
    with pytest.raises(SettingsError) as raised:
        RemoteTools([agent({**CRM, "api_key_env": "CRM_TOKEN"})], {}, RemoteTimeouts())
    assert str(raised.value) == (
        "gateway.toml, [agents.maya]: tools[0] needs CRM_TOKEN; set it in the environment or in .env"
    )


def test_missing_extra_is_named(monkeypatch):
    monkeypatch.setitem(extras.PACKAGES, "mcp", ("no_such_package",))
    with pytest.raises(SettingsError, match=r"tools\[0\] is an MCP server but the extra mcp is not installed; run: "):
        RemoteTools([agent(CRM)], {}, RemoteTimeouts())


def test_names_that_functions_can_not_have():
    assert http_tool_names(agent(SHOP, CRM)) == {"shop"}
