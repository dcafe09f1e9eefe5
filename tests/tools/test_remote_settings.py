from pathlib import Path

import pytest

from gateway.agents import Agent, AgentDirectory
from gateway.errors import SettingsError
from gateway.session import TrustLevel
from gateway.settings import Secret, load
from gateway.tools.remote_settings import (
    BoundParameter,
    HttpToolSettings,
    McpSettings,
    ToolParameter,
    is_own_network,
    least_trust,
    secret_headers,
)

MCP = {"mcp": "https://crm.example.com/mcp"}
HTTP = {"http": "GET https://shop.example.com/orders/{order}", "name": "order_status", "description": "Look it up."}
ORDER = {"order": "The order number"}


def read(*tools):
    agent = {"prompt": "prompts/maya.md", "tools": list(tools)}
    return next(iter(AgentDirectory({"maya": agent}, Path(".")))).tools


def test_server_with_defaults():
    [server] = read(MCP)
    assert server == McpSettings(mcp="https://crm.example.com/mcp")
    assert (server.tools, server.prefix, server.timeout, server.host) == (None, "", 10.0, "crm.example.com")


def test_request_with_parameters():
    quantity = {"type": "number", "description": "How many", "required": False}
    [tool] = read(
        {**HTTP, "parameters": {**ORDER, "qty": quantity, "who": {"from": "caller"}, "shop": {"constant": 3}}}
    )
    assert tool.parameters == {
        "order": ToolParameter("The order number"),
        "qty": ToolParameter("How many", "number", (), False),
        "who": BoundParameter("caller"),
        "shop": BoundParameter("", 3),
    }
    assert (tool.http.method, tool.http.places) == ("GET", ["order"])


def test_agent_takes_what_was_read():
    tools = read(MCP, {**HTTP, "parameters": ORDER})
    assert Agent("maya", "You are Maya.", tools=tools).tools == tools


@pytest.mark.parametrize(
    ("tools", "message"),
    [
        ("https://x", ' must be a list like [{ mcp = "https://host/mcp" }]'),
        ([{}], '[0] must be { mcp = "https://…" } or { http = "POST https://…", name = "…" }'),
        ([MCP, {**MCP, **HTTP}], '[1] must be { mcp = "https://…" } or { http = "POST https://…", name = "…" }'),
        ([{"mcp": "crm"}], "[0].mcp is not an https address; write it like https://host/path"),
        (
            [{"mcp": "http://crm.example.com/"}],
            "[0].mcp must begin with https://; http:// is for hosts of your own network",
        ),
        (
            [{"mcp": "https://u:hunter2@x.example.com/"}],
            '[0].mcp has a password in it; use headers = { Authorization = "env:NAME" } instead',
        ),
        (
            [{"mcp": "https://x.example.com/?api_key=hunter2"}],
            '[0].mcp has a secret in it; use headers = { NAME = "env:NAME" } or a constant instead',
        ),
        (
            [{**MCP, "headers": {"Authorization": "Bearer hunter2"}}],
            '[0].headers.Authorization must be "env:NAME"; put the secret into the environment or .env as NAME',
        ),
        (
            [{**MCP, "headers": {"X-Tenant": "env:"}}],
            '[0].headers.X-Tenant must be "env:NAME"; put the secret into the environment or .env as NAME',
        ),
        ([{**MCP, "headers": {"X Y": "z"}}], "[0].headers.X Y is not a header; use ASCII letters, and text in quotes"),
        ([{**MCP, "headers": "x"}], '[0].headers must be a table like { Authorization = "env:NAME" }'),
        (
            [{**MCP, "headers": {"authorization": "env:A"}, "api_key_env": "B"}],
            "[0] has api_key_env and the header Authorization; use one of them",
        ),
        ([{**MCP, "api_key_env": "$A"}], "[0].api_key_env must be the name of an environment variable, like CRM_TOKEN"),
        ([{**MCP, "timeout": 0}], "[0].timeout must be a number of seconds, up to 120"),
        ([{**MCP, "timeout": True}], "[0].timeout must be a number of seconds, up to 120"),
        ([{**MCP, "tools": []}], '[0].tools must be a list of names, like ["find_order"]; leave it out for all tools'),
        ([{**MCP, "prefix": "crm."}], "[0].prefix must be up to 32 letters, digits, - and _, like crm_"),
        ([{**MCP, "requires": "all"}], "[0].requires must be one of none, name, summaries, everything"),
        ([{**MCP, "send_caller": "perhaps"}], "[0].send_caller is 'perhaps'; use true or false"),
        (
            [{**MCP, "tool": ["a"]}],
            "[0]: unknown key tool; known are api_key_env, headers, mcp, parameters, prefix, requires, send_caller, "
            "timeout, tools",
        ),
        (
            [{**MCP, "parameters": ORDER}],
            "[0].parameters.order needs from or constant; the server describes all others",
        ),
        ([HTTP], "[0].http has {order}, but parameters has no order; add it"),
        (
            [{**HTTP, "parameters": {"order": {"required": False}}}],
            "[0].parameters.order is part of the path, so it can't be optional",
        ),
        ([{**HTTP, "http": "https://x"}], '[0].http must be a method and an address, like "POST https://host/path"'),
        (
            [{**HTTP, "http": "GET https://{host}.example.com/"}],
            "[0].http: a {place} is allowed only in the path; give other values as parameters",
        ),
        (
            [{"http": "GET https://x.example.com/", "description": "It."}],
            "[0].name is missing; the agent chooses its tools by name and description",
        ),
        ([{**HTTP, "name": "order status"}], "[0].name must be up to 64 letters, digits, - and _, like order_status"),
        ([{**HTTP, "parameters": ["order"]}], '[0].parameters must be a table like { order = "The order number" }'),
        (
            [{**HTTP, "parameters": {"a b": "c"}}],
            "[0].parameters.a b is not a parameter's name; use letters, digits, - and _",
        ),
        ([{**HTTP, "parameters": {"order": 3}}], "[0].parameters.order must be text in quotes or a table"),
        (
            [{**HTTP, "parameters": {"order": {"kind": "x"}}}],
            "[0].parameters.order: unknown key kind; known are description, options, required, type",
        ),
        (
            [{**HTTP, "parameters": {"order": {"from": "caller", "type": "string"}}}],
            "[0].parameters.order: unknown key type; known are constant, from; the agent does not see such a parameter",
        ),
        (
            [{**HTTP, "parameters": {"order": {"from": "caller", "constant": 1}}}],
            "[0].parameters.order has from and constant; use one of them",
        ),
        (
            [{**HTTP, "parameters": {"order": {"from": "me"}}}],
            "[0].parameters.order.from must be one of caller, agent, session",
        ),
        (
            [{**HTTP, "parameters": {"order": {"constant": []}}}],
            "[0].parameters.order.constant must be text in quotes, a number, true or false",
        ),
        (
            [{**HTTP, "parameters": {"order": {"constant": "env:"}}}],
            '[0].parameters.order.constant must be like "env:CRM_TENANT"',
        ),
        (
            [{**HTTP, "parameters": {"order": {"type": "text"}}}],
            "[0].parameters.order.type must be one of string, number, integer, boolean",
        ),
        (
            [{**HTTP, "parameters": {"order": {"options": "a"}}}],
            '[0].parameters.order.options must be a list like ["small", "large"]',
        ),
        (
            [{**HTTP, "parameters": {"order": {"type": "number", "options": ["a"]}}}],
            "[0].parameters.order.options are for the type string only",
        ),
        ([{**HTTP, "parameters": {"order": {"required": 1}}}], "[0].parameters.order.required must be true or false"),
        (
            [{**HTTP, "parameters": {"order": {"description": 1}}}],
            "[0].parameters.order.description must be text in quotes",
        ),
        (
            [{**HTTP, "parameters": ORDER}, {**HTTP, "parameters": ORDER}],
            " has two tools of the name order_status; rename one",
        ),
    ],
)
def test_mistake_says_what_to_write(tools, message):
    with pytest.raises(SettingsError) as raised:
        AgentDirectory({"maya": {"prompt": "prompts/maya.md", "tools": tools}}, Path("."))
    assert str(raised.value) == f"gateway.toml, [agents.maya]: tools{message}"
    assert "hunter2" not in str(raised.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "10.0.0.5", "192.168.1.9", "localhost", "n8n", "nas.local"])
def test_own_network_needs_no_https(host):
    assert is_own_network(host)


@pytest.mark.parametrize("host", ["8.8.8.8", "example.com", "localhost.example.com"])
def test_other_hosts_need_https(host):
    assert not is_own_network(host)


def test_tool_for_the_callers_number_needs_a_certain_caller():
    by_number = {**HTTP, "parameters": {"order": {"from": "caller"}}}
    plain, bound, lowered = read(
        {**HTTP, "name": "a", "parameters": ORDER}, by_number, {**by_number, "name": "b", "requires": "none"}
    )
    assert [least_trust(tool) for tool in (plain, bound, lowered)] == [
        TrustLevel.NONE,
        TrustLevel.EVERYTHING,
        TrustLevel.NONE,
    ]


# Secrets


def test_secrets_come_from_the_environment(tmp_path):
    (tmp_path / "gateway.toml").write_text("""
[agents.maya]
tools = [
    { mcp = "https://crm.example.com/mcp", api_key_env = "CRM_TOKEN" },
    { mcp = "https://x.example.com/mcp", headers = { X-Key = "env:X_KEY", X-Tenant = "acme" } },
    { mcp = "https://y.example.com/mcp", parameters = { t = { constant = "env:T" } } },
]
""")
    environ = {"CRM_TOKEN": "abc", "X_KEY": "def", "T": "ghi", "OTHER": "jkl"}
    settings = load(environ, tmp_path)
    assert settings.agent_keys == {"CRM_TOKEN": Secret("abc"), "X_KEY": Secret("def"), "T": Secret("ghi")}
    first, second, _ = next(iter(AgentDirectory(settings.agents, tmp_path))).tools
    assert secret_headers(first, settings.agent_keys, "") == {"Authorization": Secret("Bearer abc")}
    assert secret_headers(second, settings.agent_keys, "") == {"X-Key": Secret("def"), "X-Tenant": Secret("acme")}


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "tools[0] needs CRM_TOKEN; set it in the environment or in .env"),
        ({"CRM_TOKEN": Secret("a\nb")}, "CRM_TOKEN has a character that is not allowed in a header; copy it again"),
    ],
)
def test_unusable_secret_is_named(keys, message):
    tool = HttpToolSettings(http="GET https://x.example.com", name="x", description="x", api_key_env="CRM_TOKEN")
    with pytest.raises(SettingsError, match=f"^{message.replace('[', '.').replace(']', '.')}$"):
        secret_headers(tool, keys, "tools[0]")
