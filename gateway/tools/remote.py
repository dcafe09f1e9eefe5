"""
Tools that other programs run: HTTP requests and MCP servers that gateway.toml names.

No call waits for a server: it starts with the tools that are known. Arguments and results may quote the caller, and
addresses and headers may hold secrets: the log gets the names of function and host, and the type of an error.
"""

import asyncio
import importlib
import logging
import re
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, Protocol
from urllib.parse import quote, urlsplit

import httpx

from gateway import extras
from gateway.agents import Agent
from gateway.engines.interface import AgentFunction
from gateway.errors import GatewayError, SettingsError
from gateway.session import TrustLevel, VoiceSession
from gateway.settings import Secret
from gateway.tools.builtin import NAMES
from gateway.tools.remote_settings import (
    BoundParameter,
    HttpToolSettings,
    McpSettings,
    ToolParameter,
    least_trust,
    needed,
    secret_headers,
    variable_of,
)
from gateway.tools.schema import MOST_RESULT_CHARACTERS, ArgumentsRefused, FunctionSchema, GivenSchema

if TYPE_CHECKING:  # it imports the SDK, which takes a second of CPU
    from gateway.tools.mcp_client import ListedTool, McpConnection

MOST_RESPONSE_BYTES: Final = 4 * MOST_RESULT_CHARACTERS
"""Of an HTTP answer; the rest would be cut off."""
META: Final = "voice-gateway/"
"""Begins the keys of `_meta` in a request to an MCP server."""

_TYPES: Final[Mapping[str, type]] = {"string": str, "number": float, "integer": int, "boolean": bool}
_OMITTED: Final = object()
_HEADERS: Final = {
    "Accept": "application/json, text/plain;q=0.9, */*;q=0.1",
    "Accept-Encoding": "identity",  # a small compressed answer could be a large one
    "User-Agent": "voice-gateway",
}
_NOT_IN_NAMES: Final = re.compile("[^a-zA-Z0-9_-]")
_MOST_NAME_CHARACTERS: Final = 64

_log = logging.getLogger(__name__)


class RemoteToolFailed(GatewayError):
    """The message is written for the agent; `kind` is what the log may have of it."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class ToolSchema(Protocol):
    @property
    def definition(self) -> AgentFunction: ...

    def parse(self, text: str) -> dict[str, Any]:
        """Read the agent's JSON. Raises ArgumentsRefused."""


@dataclass(frozen=True)
class RemoteTool:
    """A tool of one agent. Its handler runs on the event loop; it raises RemoteToolFailed."""

    schema: ToolSchema
    handler: Callable[[VoiceSession, dict[str, Any]], Awaitable[object]]
    timeout: float
    requires: TrustLevel


# HTTP


class HttpTool:
    """One request as a tool. Redirects are not followed: they could lead anywhere."""

    def __init__(
        self, settings: HttpToolSettings, keys: Mapping[str, Secret], http: httpx.AsyncClient, where: str
    ) -> None:
        """Raises SettingsError for a variable that is not set."""
        self._request = settings.http
        self._http = http
        self._headers = secret_headers(settings, keys, where)
        self._bound = BoundValues(settings.parameters, keys, where)
        offered = {name: item for name, item in settings.parameters.items() if isinstance(item, ToolParameter)}
        schema = FunctionSchema.of(
            settings.name,
            settings.description,
            {name: Annotated[_hint(item), item.description] for name, item in offered.items()},
            defaults={name: _OMITTED for name, item in offered.items() if not item.required},
            speculative=settings.speculative,
        )
        self.tool = RemoteTool(schema, self._send, settings.timeout, least_trust(settings))

    async def _send(self, session: VoiceSession, arguments: dict[str, Any]) -> str | None:
        given = {name: _plain(value) for name, value in arguments.items() if value is not _OMITTED}
        given |= self._bound.of(session)
        url = httpx.URL(self._url(given))
        in_query = self._request.method in ("GET", "DELETE")
        headers = _HEADERS | {name: value.reveal() for name, value in self._headers.items()}
        request = self._http.build_request(
            self._request.method,
            url.copy_merge_params(given) if in_query else url,
            json=None if in_query else given,
            headers=headers,
            timeout=None,  # that of the tool applies
        )
        try:
            answer = await self._http.send(request, stream=True, follow_redirects=False)
            try:
                return await _text(answer)
            finally:
                await answer.aclose()
        except httpx.HTTPError as error:
            raise RemoteToolFailed("the server can't be reached", type(error).__name__) from None

    def _url(self, given: dict[str, Any]) -> str:
        """The address, with values in the places of its path; they are removed from `given`."""
        parts = urlsplit(self._request.url)
        path = parts.path
        for place in self._request.places:
            text = str(given[place]).lower() if isinstance(given[place], bool) else str(given[place])
            if text in ("", ".", ".."):  # would be another path
                raise ArgumentsRefused(f"{place}: Input should not be empty")
            path = path.replace(f"{{{place}}}", quote(text, safe=""))
        for place in self._request.places:
            given.pop(place, None)
        return parts._replace(path=path).geturl()


def _hint(parameter: ToolParameter) -> Any:
    return Literal[parameter.options] if parameter.options else _TYPES[parameter.type]


def _plain(value: Any) -> Any:
    """2.0 as 2: many servers take no fraction where a whole number belongs."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


async def _text(answer: httpx.Response) -> str | None:
    """The body, as far as the agent gets it; None for an empty one. Raises RemoteToolFailed."""
    if not answer.is_success:
        raise RemoteToolFailed(f"the server answered with status {answer.status_code}", f"status {answer.status_code}")
    kind = answer.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind and not kind.startswith("text/") and not kind.endswith(("json", "xml", "urlencoded")):
        raise RemoteToolFailed(f"the server answered with {kind}, which is not text", "not text")
    if answer.headers.get("Content-Encoding", "identity") != "identity":
        raise RemoteToolFailed("the server sent a compressed answer", "compressed")
    body = b""
    async for chunk in answer.aiter_raw():
        body += chunk
        if len(body) > MOST_RESPONSE_BYTES:
            break
    try:
        return body.decode(answer.charset_encoding or "utf-8", errors="replace") or None
    except LookupError:
        return body.decode(errors="replace") or None


# Values that the agent can't set


class BoundValues:
    """Constants, and what is known of the call, as arguments."""

    def __init__(
        self, parameters: Mapping[str, ToolParameter | BoundParameter], keys: Mapping[str, Secret], where: str
    ):
        self._sources = {
            name: item.source for name, item in parameters.items() if isinstance(item, BoundParameter) and item.source
        }
        self._constants = {
            name: needed(variable, keys, where) if (variable := variable_of(item.constant)) else item.constant
            for name, item in parameters.items()
            if isinstance(item, BoundParameter) and not item.source
        }

    @property
    def names(self) -> set[str]:
        return {*self._sources, *self._constants}

    def of(self, session: VoiceSession) -> dict[str, Any]:
        """Raises RemoteToolFailed if the caller has withheld the number that is wanted."""
        known = {"caller": session.number or session.caller, "agent": session.agent, "session": session.id}
        if "caller" in self._sources.values() and not known["caller"]:
            raise RemoteToolFailed("the caller's number is not known", "no number")
        constants = {
            name: value.reveal() if isinstance(value, Secret) else value for name, value in self._constants.items()
        }
        return constants | {name: known[source] for name, source in self._sources.items()}


# MCP


class McpTools:
    """The tools of an MCP server for one agent."""

    def __init__(self, settings: McpSettings, keys: Mapping[str, Secret], where: str) -> None:
        """Raises SettingsError for a variable that is not set."""
        self.settings = settings
        self.headers = secret_headers(settings, keys, where)
        self._bound = BoundValues(settings.parameters, keys, where)

    def tools(self, connection: "McpConnection") -> Iterator[RemoteTool]:
        for listed in connection.tools:
            if self.settings.tools is None or listed.name in self.settings.tools:
                yield self._tool(listed, connection)

    def _tool(self, listed: "ListedTool", connection: "McpConnection") -> RemoteTool:
        name = _NOT_IN_NAMES.sub("_", f"{self.settings.prefix}{listed.name}")
        properties = listed.parameters.get("properties") or {}
        bound = self._bound.names & properties.keys()
        parameters = dict(listed.parameters)
        if bound:
            parameters["properties"] = {key: value for key, value in properties.items() if key not in bound}
            parameters["required"] = [key for key in listed.parameters.get("required") or () if key not in bound]

        async def handler(session: VoiceSession, arguments: dict[str, Any]) -> object:
            values = self._bound.of(session) if bound else {}
            # The agent does not see these; one that names them all the same has no effect.
            given = arguments | {key: values[key] for key in bound}
            return await connection.call(listed.name, given, self._meta(session))

        schema = GivenSchema(AgentFunction(name, listed.description, parameters))
        return RemoteTool(schema, handler, self.settings.timeout, least_trust(self.settings))

    def _meta(self, session: VoiceSession) -> dict[str, Any]:
        """Whose call it is, for the server. The caller only if it is certain who that is."""
        known = {"agent": session.agent, "session": session.id, "trust": str(session.trust)}
        if self.settings.send_caller and session.trust >= TrustLevel.EVERYTHING:
            known["caller"] = session.number or session.caller
        return {f"{META}{name}": value for name, value in known.items()}


# All agents


@dataclass(frozen=True)
class RemoteTimeouts:
    """Of connections to MCP servers, in seconds."""

    connect: float = 10.0
    """For each request that is not a tool's."""
    refresh: float = 300.0
    """How often the list of tools is read again, if the server does not say that it has changed."""
    first_pause: float = 1.0
    longest_pause: float = 60.0
    """Between attempts to connect."""


class RemoteTools:
    """The remote tools of all agents, and the connections to their MCP servers."""

    def __init__(self, agents: Iterable[Agent], keys: Mapping[str, Secret], timeouts: RemoteTimeouts) -> None:
        """Raises SettingsError for a variable that is not set, a name that is taken, or if the extra is missing."""
        self._timeouts = timeouts
        self._http: httpx.AsyncClient | None = None  # takes a while to make
        self._http_tools: dict[str, list[RemoteTool]] = {}
        self._mcp_tools: dict[str, list[McpTools]] = {}
        self._connections: dict[_ServerKey, McpConnection] = {}
        self._left_out: set[tuple[str, ...]] = set()
        for agent in agents:
            for number, settings in enumerate(agent.tools):
                where = f"gateway.toml, [agents.{agent.name}]: tools[{number}]"
                if isinstance(settings, McpSettings):
                    extras.require("mcp", f"{where} is an MCP server")
                    self._mcp_tools.setdefault(agent.name, []).append(McpTools(settings, keys, where))
                elif settings.name in NAMES:
                    raise SettingsError(f"{where}.name: the gateway has a tool {settings.name}; rename yours")
                else:
                    self._http = self._http or httpx.AsyncClient()
                    tool = HttpTool(settings, keys, self._http, where).tool
                    self._http_tools.setdefault(agent.name, []).append(tool)

    @property
    def health(self) -> dict[str, Any]:
        """For /health: whether the MCP servers answer. Empty without any."""
        if not self._mcp_tools:
            return {}
        connections = self._connections.values()
        return {"tools": "ok" if connections and not any(each.is_away for each in connections) else "away"}

    async def run(self) -> None:
        """Keep a session with each MCP server. Several agents share one if their headers are the same."""
        if not self._mcp_tools:
            return
        client = await asyncio.to_thread(importlib.import_module, "gateway.tools.mcp_client")
        for server in (server for servers in self._mcp_tools.values() for server in servers):
            if (key := _key(server)) not in self._connections:
                self._connections[key] = client.McpConnection(server.settings, server.headers, self._timeouts)
        async with asyncio.TaskGroup() as tasks:
            for connection in self._connections.values():
                tasks.create_task(connection.run())

    async def close(self) -> None:
        if self._http is not None:
            await self._http.aclose()

    def tools(self, agent: Agent, taken: Collection[str]) -> tuple[RemoteTool, ...]:
        """The tools of a call that starts now. A name in `taken` is left out, and so is a second of a name."""
        found = {tool.schema.definition.name: tool for tool in self._http_tools.get(agent.name, ())}
        for server in self._mcp_tools.get(agent.name, ()):
            connection = self._connections.get(_key(server))
            for tool in server.tools(connection) if connection is not None else ():
                name = tool.schema.definition.name
                if len(name) > _MOST_NAME_CHARACTERS:
                    self._leave_out(agent, server, name, "its name is too long")
                elif name in found or name in taken or name in NAMES:
                    self._leave_out(agent, server, name, "another tool has this name; set a prefix")
                else:
                    found[name] = tool
        return tuple(found.values())

    def _leave_out(self, agent: Agent, server: McpTools, name: str, reason: str) -> None:
        """Log it once: every call would."""
        entry = (agent.name, server.settings.host, name[:_MOST_NAME_CHARACTERS], reason)
        if entry not in self._left_out:
            self._left_out.add(entry)
            fields = dict(zip(("agent", "server", "function", "reason"), entry, strict=True))
            _log.warning("tool left out", extra=fields)


_ServerKey = tuple[str, frozenset[tuple[str, Secret]]]


def _key(server: McpTools) -> _ServerKey:
    return server.settings.mcp, frozenset(server.headers.items())


def http_tool_names(agent: Agent) -> frozenset[str]:
    """Names that the functions of the agent's file can't have."""
    return frozenset(tool.name for tool in agent.tools if isinstance(tool, HttpToolSettings))
