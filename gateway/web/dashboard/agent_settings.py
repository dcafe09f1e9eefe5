"""
What gateway.toml sets for an agent, as rows for people: each key, its value, and where it comes from.

Secrets are masked: what is named like one, the values of headers, and everything of an address but its host.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from gateway.agents import Agent
from gateway.engines.registry import EngineDirectory
from gateway.settings import Secret

ALWAYS_SHOWN: Final = ("numbers", "brain", "language", "interrupt", "patience", "silence")
"""The others, except memory, only where they are set."""
_ELSEWHERE: Final = ("prompt", "greeting", "voice", "engine", "disabled_tools", "transfer_to", "memory")
_MEMORY: Final = ("trust", "repeat_caller", "retention_days")
_SECRET: Final = re.compile("authorization|cookie|credential|key|passw|pin|secret|signature|token", re.IGNORECASE)
_NO_SECRET: Final = ("api_key_env", "keyterms", "first_token_seconds")
_MASK: Final = "••••"
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE)
_VOICE_ENGINES: Final = ("deepgram", "openai", "xai")
"""Engines that use `voice`."""


@dataclass(frozen=True)
class SettingRow:
    key: str
    value: str
    source: str


@dataclass(frozen=True)
class VoiceSetting:
    """`name` is the voice of the agent's first engine; `why_fixed` says why it can't be changed here, or is empty."""

    name: str
    why_fixed: str = ""


def rows(agent: Agent, table: Mapping[str, Any], engines: EngineDirectory) -> list[SettingRow]:
    """Those that are set in the agent's table, and the most important defaults."""
    keys = [*ALWAYS_SHOWN, *(key for key in table if key not in (*ALWAYS_SHOWN, *_ELSEWHERE))]
    memory = table.get("memory", {})
    defaults = {item.name: item.default for item in fields(agent)}
    found = [_row(key, agent, table, engines) for key in keys]
    for key in _MEMORY:
        value = getattr(agent, key)
        otherwise = "default" if value == defaults[key] else "memory.json"
        text = "MEMORY_RETENTION_DAYS" if value is None else shown(value)
        found.append(SettingRow(f"memory.{key}", text, "gateway.toml" if key in memory else otherwise))
    return found


def unset(agent: Agent, table: Mapping[str, Any]) -> list[str]:
    """The keys that have their defaults and are not shown."""
    hidden = {"name", "prompt_file", "version", "engine_thinks", "speak", "repeat_caller", "trust", "retention_days"}
    names = {item.name for item in fields(agent)} - hidden - set(_ELSEWHERE)
    return sorted(names - set(ALWAYS_SHOWN) - table.keys())


def voice_of(agent: Agent, table: Mapping[str, Any], engines: EngineDirectory) -> VoiceSetting:
    engine = engines.by_agent[agent.name][0].name
    if "+" in engine:
        return VoiceSetting(engine.partition("+")[2], "It is set by speak in engine.")
    if engine not in _VOICE_ENGINES:
        return VoiceSetting(f"{engine} engine's own", f"The engine {engine} has a voice of its own.")
    if own := agent.realtime.get(engine, {}).get("voice"):
        return VoiceSetting(str(own), f"It is set by voice in {engine}.")
    if isinstance(table.get("voice"), Mapping):
        return VoiceSetting(agent.live.voice, "It is a table in gateway.toml.")
    return VoiceSetting(agent.live.voice)


def engine_names(agent: Agent, engines: EngineDirectory) -> list[str]:
    """In order of preference."""
    handed_over = ["elevenlabs (Twilio calls)"] if agent.is_handed_over else []
    return [*handed_over, *(one.name for one in engines.by_agent[agent.name])]


def brain_names(agent: Agent, engines: EngineDirectory) -> list[str]:
    """Its own language models, or what answers without one."""
    models = [entry if isinstance(entry, str) else str(entry.get("model", "")) for entry in agent.brain]
    return models or ["the engine's own" if engines.has_llm(agent.name) else "first with a key, else the script"]


def _row(key: str, agent: Agent, table: Mapping[str, Any], engines: EngineDirectory) -> SettingRow:
    source = "gateway.toml" if key in table else "default"
    match key:
        case "brain":
            return SettingRow(key, " → ".join(brain_names(agent, engines)), source)
        case "numbers" if not agent.numbers:
            return SettingRow(key, "all that no other agent answers", source)
    return SettingRow(key, shown(table[key] if key in table else getattr(agent, key)), source)


def shown(value: Any, name: str = "") -> str:
    """A value as text, without secrets."""
    if isinstance(value, Secret) or (name and _is_secret(name, value)):
        return _MASK
    match value:
        case None | "":
            return "–"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:g}"
        case str():
            return _URL.sub(_host, value)
        case Path():
            return str(value)
        case Mapping():
            named = {key: "secret" if name == "headers" else str(key) for key in value}
            return ", ".join(f"{key}: {shown(item, named[key])}" for key, item in value.items()) or "–"
        case frozenset() | set():
            return shown(sorted(value, key=str))
        case Sequence():
            return ", ".join(shown(item) for item in value) or "–"
    if is_dataclass(value) and not isinstance(value, type):
        given = {item.name: getattr(value, item.name) for item in fields(value)}
        return shown({key: item for key, item in given.items() if item not in (None, "", (), frozenset())})
    return str(value)


def _is_secret(name: str, value: Any) -> bool:
    is_named = bool(_SECRET.search(name)) and name not in (*_NO_SECRET, "with_pin")
    return is_named and not (isinstance(value, str) and value.startswith("env:")) and not isinstance(value, Mapping)


def _host(match: re.Match[str]) -> str:
    """An address may hold a secret anywhere after its host."""
    try:
        parts = urlsplit(match[0])
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return _MASK
    return f"{parts.scheme}://{host}{'/…' if len(parts.path) > 1 or parts.query else ''}"
