"""The MCP servers and HTTP APIs of agents: whether they answer, accept the key, and have the tools."""

import asyncio
from importlib import import_module

from gateway.agents import Agent
from gateway.diagnostics.configuration import Configuration
from gateway.diagnostics.http_probe import HttpProbe, encrypted
from gateway.diagnostics.results import TIMEOUT, CheckResult, problem, warning
from gateway.settings import Settings
from gateway.text.figures import count
from gateway.tools.remote import RemoteTimeouts, RemoteToolFailed
from gateway.tools.remote_settings import McpSettings, secret_headers


async def check_remote_tools(configuration: Configuration, probe: HttpProbe) -> list[CheckResult]:
    todo = "start it, or correct http in gateway.toml"
    checks = [
        _mcp_server(agent, tool, configuration.settings)
        if isinstance(tool, McpSettings)
        else probe.check_host(f"tools of {agent.name}: {tool.name}", tool.http.url, todo)
        for agent in configuration.agents
        for tool in agent.tools
    ]
    return list(await asyncio.gather(*checks))


async def _mcp_server(agent: Agent, server: McpSettings, settings: Settings) -> CheckResult:
    await asyncio.to_thread(import_module, "gateway.tools.mcp_client")  # takes a second
    from gateway.tools.mcp_client import tool_names

    check, headers = f"tools of {agent.name}: {server.host}", secret_headers(server, settings.agent_keys, "")
    try:
        async with asyncio.timeout(2 * TIMEOUT):
            names = await tool_names(server, headers, RemoteTimeouts(connect=TIMEOUT))
    except TimeoutError:
        return problem(check, "does not answer", "start the MCP server, or correct mcp in gateway.toml")
    except RemoteToolFailed as error:
        if error.kind in ("status 401", "status 403"):
            return problem(check, "rejects the key", "correct api_key_env or headers in gateway.toml, or the key")
        return problem(check, f"no MCP server ({error.kind})", "start the MCP server, or correct mcp in gateway.toml")
    if missing := sorted((server.tools or frozenset()) - names):
        return warning(check, f"has no tool {', '.join(missing)}", f"use some of: {', '.join(sorted(names))}")
    found = count(len(names & server.tools if server.tools is not None else names), "tool")
    return encrypted(check, server.mcp, f"answers, {found}")
