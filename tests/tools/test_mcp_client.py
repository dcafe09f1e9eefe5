"""A session with a real MCP server, made with the official SDK, on loopback."""

import asyncio
import contextlib
import logging

import pytest
from mcp import types

from gateway.settings import Secret
from gateway.tools.mcp_client import (
    MOST_RESPONSE_BYTES,
    MOST_SCHEMA_CHARACTERS,
    MOST_TOOLS,
    McpConnection,
    tool_names,
)
from gateway.tools.remote import RemoteTimeouts, RemoteToolFailed
from gateway.tools.remote_settings import McpSettings
from tests.fakes.tool_servers import TOKEN, FakeMcpServer, text, tool
from tests.stage import until, until_it

QUICK = RemoteTimeouts(first_pause=0.01, longest_pause=0.05)
BEARER = {"Authorization": Secret(f"Bearer {TOKEN}")}


@contextlib.asynccontextmanager
async def connected(server, timeouts=QUICK):
    """A connection to the running server; ends with the block."""
    connection = McpConnection(McpSettings(mcp=server.url), BEARER, timeouts)
    running = asyncio.create_task(connection.run())
    try:
        await until(lambda: not connection.is_away)
        yield connection
    finally:
        running.cancel()
        await asyncio.wait({running})


def names(connection):
    return [listed.name for listed in connection.tools]


async def call(connection, name="find_order", **arguments):
    return await connection.call(name, arguments, {})


def answering(result):
    async def answer(arguments):
        return result

    return answer


@pytest.mark.parametrize("is_old", [False, True])
async def test_tools_are_listed_and_called(is_old):
    async with FakeMcpServer(is_old=is_old, token=TOKEN).running() as server, connected(server) as connection:
        assert names(connection) == ["find_order", "cancel_order"]
        assert connection.tools[0].parameters["required"] == ["order"]
        result = await connection.call("find_order", {"order": "7"}, {"voice-gateway/session": "s"})
        assert result == "Order 7 is on its way."
        assert server.calls == [("find_order", {"order": "7"}, {"voice-gateway/session": "s"})]
        await call(connection, order="8")
        assert server.connections == 1  # one session for all calls


@pytest.mark.parametrize("is_old", [False, True])
async def test_announced_change_is_read(is_old):
    async with FakeMcpServer(is_old=is_old, token=TOKEN).running() as server, connected(server) as connection:
        for name in ("refund", "exchange"):  # the first may come with the list that is read when the stream is open
            server.tools.append(tool(name))

            async def is_known(name=name):
                await server.announce_change()
                return name in names(connection)

            await until_it(is_known)


async def test_list_is_read_again_from_time_to_time():
    timeouts = RemoteTimeouts(refresh=0.01)
    async with FakeMcpServer(token=TOKEN).running() as server, connected(server, timeouts) as connection:
        server.tools.pop()
        await until(lambda: names(connection) == ["find_order"])


@pytest.mark.parametrize("is_old", [False, True])
async def test_server_that_dies_and_comes_back(is_old, caplog):
    caplog.set_level(logging.INFO, "gateway")
    server = FakeMcpServer(is_old=is_old, token=TOKEN)
    async with contextlib.AsyncExitStack() as stack:
        async with server.running():
            connection = await stack.enter_async_context(connected(server))
        await until(lambda: connection.is_away)  # noticed without a call: its stream of events has ended
        assert connection.tools == ()
        with pytest.raises(RemoteToolFailed, match="^the server can't be reached$"):
            await call(connection)
        async with server.running():
            await until(lambda: not connection.is_away)
            assert await call(connection, order="7") == "Order 7 is on its way."
            await stack.aclose()
    lines = [(line.message, line.server) for line in caplog.records if line.name.startswith("gateway.tools")]
    host = server.url.split("/")[2]
    phrases = ["tool server connected", "tool server is away", "tool server connected"]
    assert lines == [(phrase, host) for phrase in phrases]


async def test_calls_of_others_outlive_a_failed_one():
    server = FakeMcpServer(token=TOKEN, sends_json=True)
    released = asyncio.Event()

    async def slow(arguments):
        await released.wait()
        return text("late")

    server.results = {"cancel_order": slow, "find_order": answering(text("x" * (MOST_RESPONSE_BYTES + 1)))}
    async with server.running(), connected(server) as connection:
        waiting = asyncio.create_task(call(connection, "cancel_order"))
        await until(lambda: server.calls)
        with pytest.raises(RemoteToolFailed, match="^the server did not answer as it should$"):
            await call(connection)
        released.set()
        assert await waiting == "late"


@pytest.mark.parametrize("is_old", [False, True])
async def test_cancelled_call_ends_at_the_server(is_old):
    server = FakeMcpServer(is_old=is_old, token=TOKEN)

    async def slow(arguments):
        await asyncio.Event().wait()

    server.results["find_order"] = slow
    async with server.running(), connected(server) as connection:
        task = asyncio.create_task(call(connection))
        await until(lambda: server.calls)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.cancelled.wait(), 10)
        assert await call(connection, "cancel_order", order="7") == "Order 7 is on its way."


IMAGE = types.ImageContent(data="aGVsbG8=", mime_type="image/png")
RESOURCE = types.EmbeddedResource(resource=types.TextResourceContents(uri="file:///x", text="from a file"))
LINK = types.ResourceLink(name="x", uri="file:///x")


@pytest.mark.parametrize(
    ("result", "content"),
    [
        (text("one", "two"), "one\ntwo"),
        (text("one", structured_content={"a": 1}), "one"),
        (text(structured_content={"a": 1}), {"a": 1}),
        (text(""), None),
        (types.CallToolResult(content=[IMAGE]), "(image, image/png, not shown)"),
        (types.CallToolResult(content=[IMAGE, RESOURCE, LINK]), None),
    ],
)
async def test_content_of_a_result(result, content):
    server = FakeMcpServer(token=TOKEN)
    server.results["find_order"] = answering(result)
    async with server.running(), connected(server) as connection:
        found = await call(connection)
    if RESOURCE in result.content:
        content = "from a file\n(image, image/png, not shown)\n(resource_link, not shown)"
    assert found == content


async def test_error_of_a_tool_is_for_the_agent():
    server = FakeMcpServer(token=TOKEN)
    server.results["find_order"] = answering(text("no such order", is_error=True))
    async with server.running(), connected(server) as connection:
        with pytest.raises(RemoteToolFailed, match="^no such order$") as raised:
            await call(connection)
    assert raised.value.kind == "tool error"


async def test_unusable_tools_are_left_out(caplog):
    server = FakeMcpServer(token=TOKEN)
    big = {"x": {"description": "x" * MOST_SCHEMA_CHARACTERS}}
    wrong = types.Tool(name="list", input_schema={"type": "object", "properties": []})
    server.tools = [tool("fine"), tool("big", big), wrong]
    async with server.running(), connected(server, RemoteTimeouts(refresh=0.01)) as connection:
        assert names(connection) == ["fine"]
        await until(lambda: server.lists > 2)
    lines = [(line.message, line.function) for line in caplog.records if line.levelname == "WARNING"]
    assert lines == [("tool left out", "big"), ("tool left out", "list")]  # once


async def test_number_of_tools_is_limited():
    server = FakeMcpServer(token=TOKEN)
    server.tools = [tool(f"tool_{number}") for number in range(MOST_TOOLS + 1)]
    async with server.running(), connected(server) as connection:
        assert len(connection.tools) == MOST_TOOLS


# Doctor


async def test_names_for_doctor():
    async with FakeMcpServer(token=TOKEN).running() as server:
        settings = McpSettings(mcp=server.url)
        assert await tool_names(settings, BEARER, QUICK) == {"find_order", "cancel_order"}
        with pytest.raises(RemoteToolFailed) as raised:
            await tool_names(settings, {}, QUICK)
    assert raised.value.kind == "status 401"


async def test_unreachable_server_for_doctor():
    with pytest.raises(RemoteToolFailed) as raised:
        await tool_names(McpSettings(mcp="http://127.0.0.1:1/mcp"), {}, QUICK)
    assert raised.value.kind == "ConnectError"
