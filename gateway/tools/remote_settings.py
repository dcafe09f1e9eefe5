"""
`tools` of an agent in gateway.toml: MCP servers and HTTP requests, used as tools without a Python file.

Secrets are named, not written: `api_key_env`, and `env:NAME` as the value of a header or a constant.
"""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Final, Literal, TypeVar
from urllib.parse import urlsplit

from pydantic import BeforeValidator, ConfigDict, ValidationInfo
from pydantic.dataclasses import dataclass

from gateway.errors import SettingsError
from gateway.session import TrustLevel
from gateway.settings import Secret, is_url, read_table

METHODS: Final = ("GET", "POST", "PUT", "PATCH", "DELETE")
TIMEOUT: Final = 10.0
"""Seconds that the agent waits for a result, by default."""
LONGEST_TIMEOUT: Final = 120.0
ENV: Final = "env:"

_CONFIG: Final = ConfigDict(arbitrary_types_allowed=True, str_strip_whitespace=True, extra="forbid")
_TOOL_NAME: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_PREFIX: Final = re.compile(r"[a-zA-Z0-9_-]{0,32}")
_PARAMETER: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")  # RFC 9110, a token
_PLACE: Final = re.compile(r"\{([^{}]*)\}")
_SECRET: Final = re.compile("authorization|cookie|credential|key|passw|secret|signature|token", re.IGNORECASE)
_OWN_DOMAINS: Final = (".local", ".localhost", ".internal", ".lan", ".home.arpa")


# Kinds of values. A message follows the key's name; none quotes an address or a header, which may hold a secret.


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def is_own_network(host: str) -> bool:
    """Whether this is a host of the machine or of its private network, by its address or its name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return "." not in host or host.lower().endswith(_OWN_DOMAINS)
    return address.is_loopback or address.is_private


def _address(text: Any) -> str:
    if not isinstance(text, str) or not is_url(text.strip(), ("https", "http")):
        raise ValueError("is not an https address; write it like https://host/path")
    parts = urlsplit(text.strip())
    if parts.username or parts.password:
        raise ValueError('has a password in it; use headers = { Authorization = "env:NAME" } instead')
    if any(_SECRET.search(item.partition("=")[0]) for item in parts.query.split("&")):
        raise ValueError('has a secret in it; use headers = { NAME = "env:NAME" } or a constant instead')
    if parts.scheme == "http" and not is_own_network(parts.hostname or ""):
        raise ValueError("must begin with https://; http:// is for hosts of your own network")
    return text.strip()


def _request(value: Any) -> "HttpRequest":
    if isinstance(value, HttpRequest):
        return value
    method, _, url = value.strip().partition(" ") if isinstance(value, str) else ("", "", "")
    if method.upper() not in METHODS:
        raise ValueError('must be a method and an address, like "POST https://host/path"')
    checked = _address(url)
    parts = urlsplit(checked)
    if _PLACE.search(f"{parts.netloc}?{parts.query}{parts.fragment}"):
        raise ValueError(": a {place} is allowed only in the path; give other values as parameters")
    return HttpRequest(method.upper(), checked)


def _headers(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ValueError('must be a table like { Authorization = "env:NAME" }')
    for name, text in value.items():
        if not _HEADER.fullmatch(name) or not isinstance(text, str) or not (text.isascii() and text.isprintable()):
            raise ValueError(f".{name} is not a header; use ASCII letters, and text in quotes")
        if not variable_of(text) and (text.startswith(ENV) or _SECRET.search(name)):
            raise ValueError(f'.{name} must be "env:NAME"; put the secret into the environment or .env as NAME')
    return dict(value)


def _key_name(value: Any) -> str:
    if not isinstance(value, str) or (value and not _VARIABLE.fullmatch(value.strip())):
        raise ValueError("must be the name of an environment variable, like CRM_TOKEN")
    return value.strip()


def _timeout(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= LONGEST_TIMEOUT:
        raise ValueError(f"must be a number of seconds, up to {LONGEST_TIMEOUT:.0f}")
    return float(value)


def _requires(value: Any) -> TrustLevel | None:
    if value is None or isinstance(value, TrustLevel):
        return value
    if value not in (levels := [str(level) for level in TrustLevel]):
        raise ValueError(f"must be one of {', '.join(levels)}")
    return TrustLevel.of(value)


def _names(value: Any) -> frozenset[str]:
    if not isinstance(value, list | tuple | frozenset) or not value or not all(isinstance(name, str) for name in value):
        raise ValueError('must be a list of names, like ["find_order"]; leave it out for all tools')
    return frozenset(value)


def _prefix(value: Any) -> str:
    if not isinstance(value, str) or not _PREFIX.fullmatch(value):
        raise ValueError("must be up to 32 letters, digits, - and _, like crm_")
    return value


def _tool_name(value: Any) -> str:
    if not isinstance(value, str) or not _TOOL_NAME.fullmatch(value):
        raise ValueError("must be up to 64 letters, digits, - and _, like order_status")
    return value


def _parameters(value: Any) -> dict[str, "ToolParameter | BoundParameter"]:
    if not isinstance(value, dict):
        raise ValueError('must be a table like { order = "The order number" }')
    return {name: _parameter(name, given) for name, given in value.items()}


def _parameter(name: str, given: Any) -> "ToolParameter | BoundParameter":
    if isinstance(given, ToolParameter | BoundParameter):
        return given
    if not _PARAMETER.fullmatch(name):
        raise ValueError(f".{name} is not a parameter's name; use letters, digits, - and _")
    table = {"description": given} if isinstance(given, str) else given
    if not isinstance(table, dict):
        raise ValueError(f".{name} must be text in quotes or a table")
    kind = BoundParameter if table.keys() & {"from", "constant"} else ToolParameter
    known = kind.__dataclass_fields__.keys() if kind is ToolParameter else {"from", "constant"}
    if unknown := sorted(set(table) - set(known)):
        why = "; the agent does not see such a parameter" if kind is BoundParameter else ""
        raise ValueError(f".{name}: unknown key {unknown[0]}; known are {', '.join(sorted(known))}{why}")
    return _bound(name, table) if kind is BoundParameter else _offered(name, table)


def _bound(name: str, table: Mapping[str, Any]) -> "BoundParameter":
    source, constant = table.get("from", ""), table.get("constant")
    if len(table) > 1:
        raise ValueError(f".{name} has from and constant; use one of them")
    if "from" in table and source not in ("caller", "agent", "session"):
        raise ValueError(f".{name}.from must be one of caller, agent, session")
    if "constant" in table and not isinstance(constant, str | int | float):
        raise ValueError(f".{name}.constant must be text in quotes, a number, true or false")
    if isinstance(constant, str) and constant.startswith(ENV) and not variable_of(constant):
        raise ValueError(f'.{name}.constant must be like "env:CRM_TENANT"')
    return BoundParameter(source, constant)


def _offered(name: str, table: Mapping[str, Any]) -> "ToolParameter":
    kind, options, required = table.get("type", "string"), table.get("options", []), table.get("required", True)
    if kind not in ("string", "number", "integer", "boolean"):
        raise ValueError(f".{name}.type must be one of string, number, integer, boolean")
    if not isinstance(options, list) or not all(isinstance(option, str) for option in options):
        raise ValueError(f'.{name}.options must be a list like ["small", "large"]')
    if options and kind != "string":
        raise ValueError(f".{name}.options are for the type string only")
    if not isinstance(required, bool):
        raise ValueError(f".{name}.required must be true or false")
    if not isinstance(table.get("description", ""), str):
        raise ValueError(f".{name}.description must be text in quotes")
    return ToolParameter(table.get("description", ""), kind, tuple(options), required)


def variable_of(text: object) -> str:
    """The environment variable that `env:NAME` names; empty for any other value."""
    name = text.removeprefix(ENV).strip() if isinstance(text, str) and text.startswith(ENV) else ""
    return name if _VARIABLE.fullmatch(name) else ""


Headers = Annotated[Mapping[str, str], BeforeValidator(_headers)]
Seconds = Annotated[float, BeforeValidator(_timeout)]
KeyName = Annotated[str, BeforeValidator(_key_name)]


@dataclass(frozen=True)
class HttpRequest:
    method: str
    url: str
    """Its path may have places for parameters, like /orders/{order}."""

    @property
    def places(self) -> list[str]:
        return _PLACE.findall(urlsplit(self.url).path)


@dataclass(frozen=True)
class ToolParameter:
    """A parameter that the agent chooses."""

    description: str = ""
    type: Literal["string", "number", "integer", "boolean"] = "string"
    options: tuple[str, ...] = ()
    required: bool = True


@dataclass(frozen=True)
class BoundParameter:
    """A parameter that the agent neither sees nor sets: by words alone a caller could make it name another caller."""

    source: Literal["", "caller", "agent", "session"] = ""
    constant: str | int | float | bool | None = None


Parameters = Annotated[Mapping[str, ToolParameter | BoundParameter], BeforeValidator(_parameters)]


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class McpSettings:
    """`{ mcp = "https://…" }`: the tools of an MCP server."""

    mcp: Annotated[str, BeforeValidator(_address)]
    tools: Annotated[frozenset[str] | None, BeforeValidator(_names)] = None
    """The server's names of those that the agent gets; None for all."""
    prefix: Annotated[str, BeforeValidator(_prefix)] = ""
    """Added to the server's names."""
    timeout: Seconds = TIMEOUT
    headers: Headers = field(default_factory=dict)
    api_key_env: KeyName = ""
    """Sent as a bearer token."""
    parameters: Parameters = field(default_factory=dict)
    """Bound parameters only: they take the place of what the server's tools call so."""
    send_caller: bool = False
    """Whether the server gets the number of a caller whose identity is certain."""
    requires: Annotated[TrustLevel | None, BeforeValidator(_requires)] = None

    @property
    def host(self) -> str:
        """For the log, which must not have the whole address."""
        return urlsplit(self.mcp).netloc


@dataclass(frozen=True, kw_only=True, config=_CONFIG)
class HttpToolSettings:
    """`{ http = "POST https://…", name = "…" }`: one request as a tool."""

    http: Annotated[HttpRequest, BeforeValidator(_request)]
    name: Annotated[str, BeforeValidator(_tool_name)]
    description: str
    parameters: Parameters = field(default_factory=dict)
    timeout: Seconds = TIMEOUT
    headers: Headers = field(default_factory=dict)
    api_key_env: KeyName = ""
    speculative: bool = False
    """It only reads, so it may run before the caller's turn is certainly over."""
    requires: Annotated[TrustLevel | None, BeforeValidator(_requires)] = None

    @property
    def host(self) -> str:
        return urlsplit(self.http.url).netloc


RemoteToolSettings = McpSettings | HttpToolSettings
_Tool = TypeVar("_Tool", McpSettings, HttpToolSettings)


def least_trust(tool: RemoteToolSettings) -> TrustLevel:
    """The level that a call needs. A tool that acts for the caller's number needs a certain one, unless it says so."""
    if tool.requires is not None:
        return tool.requires
    by_caller = any(isinstance(item, BoundParameter) and item.source == "caller" for item in tool.parameters.values())
    return TrustLevel.EVERYTHING if by_caller else TrustLevel.NONE


# Reading


def read_tools(value: Any, info: ValidationInfo) -> tuple[RemoteToolSettings, ...]:
    """The value of the key `tools`. Raises SettingsError, which names the entry by its place in the list."""
    where = f"{info.context['where']}: tools" if info.context else "tools"
    if not isinstance(value, list | tuple):
        raise SettingsError(f'{where} must be a list like [{{ mcp = "https://host/mcp" }}]')
    places = (f"{where}[{number}]" for number in range(len(value)))
    read = tuple(_read_tool(item, place) for item, place in zip(value, places, strict=True))
    names = [item.name for item in read if isinstance(item, HttpToolSettings)]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"{where} has two tools of the name {name}; rename one")
    return read


def _read_tool(table: Any, where: str) -> RemoteToolSettings:
    if isinstance(table, McpSettings | HttpToolSettings):
        return table
    if not isinstance(table, dict) or ("mcp" in table) == ("http" in table):
        raise SettingsError(f'{where} must be {{ mcp = "https://…" }} or {{ http = "POST https://…", name = "…" }}')
    if "mcp" in table:
        server = _checked_keys(read_table(McpSettings, table, where), where)
        if seen := [name for name, item in server.parameters.items() if isinstance(item, ToolParameter)]:
            raise SettingsError(f"{where}.parameters.{seen[0]} needs from or constant; the server describes all others")
        return server
    for key in ("name", "description"):
        if not table.get(key):
            raise SettingsError(f"{where}.{key} is missing; the agent chooses its tools by name and description")
    tool = _checked_keys(read_table(HttpToolSettings, table, where), where)
    for place in tool.http.places:
        if place not in tool.parameters:
            raise SettingsError(f"{where}.http has {{{place}}}, but parameters has no {place}; add it")
        item = tool.parameters[place]
        if isinstance(item, ToolParameter) and not item.required:
            raise SettingsError(f"{where}.parameters.{place} is part of the path, so it can't be optional")
    return tool


def _checked_keys(tool: _Tool, where: str) -> _Tool:
    if tool.api_key_env and "authorization" in map(str.lower, tool.headers):
        raise SettingsError(f"{where} has api_key_env and the header Authorization; use one of them")
    return tool


# Secrets


def secret_headers(tool: RemoteToolSettings, keys: Mapping[str, Secret], where: str) -> dict[str, Secret]:
    """The headers that its requests carry. Raises SettingsError for a variable that is not set."""
    headers = {
        name: needed(variable, keys, where) if (variable := variable_of(text)) else Secret(text)
        for name, text in tool.headers.items()
    }
    if tool.api_key_env:
        headers["Authorization"] = Secret(f"Bearer {needed(tool.api_key_env, keys, where).reveal()}")
    return headers


def needed(variable: str, keys: Mapping[str, Secret], where: str) -> Secret:
    """The value of an environment variable. Raises SettingsError."""
    if variable not in keys:
        raise SettingsError(f"{where} needs {variable}; set it in the environment or in .env")
    if not (keys[variable].reveal().isascii() and keys[variable].reveal().isprintable()):
        raise SettingsError(f"{variable} has a character that is not allowed in a header; copy it again")
    return keys[variable]
