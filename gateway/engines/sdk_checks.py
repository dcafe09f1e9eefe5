"""
Checks an agent's settings by the types of its engine's official SDK, for `gateway doctor`.

An SDK is imported only here, and only where it is installed: the gateway itself needs none of them.
"""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import orjson
from pydantic import BaseModel, ValidationError

from gateway.agents import Agent
from gateway.engines.deepgram_codec import DeepgramCodec
from gateway.engines.interface import AgentSettings
from gateway.engines.realtime_codec import RealtimeCodec
from gateway.engines.realtime_dialect import OPENAI


def settings_problem(engine: str, agent: Agent) -> str:
    """The first field that the SDK's types do not accept; empty if there is none, or no SDK."""
    try:
        checked = _message(engine, agent)
    except ValidationError as error:
        # In a union, models of other types complain of the type or the version.
        problems = error.errors()
        first = next((one for one in problems if one["loc"][-1] not in ("type", "version")), problems[0])
        place = [str(part) for part in first["loc"] if not str(part)[:1].isupper()]
        return f"{'.'.join(place)}: {first['msg'].lower()}"
    return next((f"{name}: unknown" for name in _unknown_fields(checked) if engine == "openai"), "")


def _message(engine: str, agent: Agent) -> BaseModel | None:
    """The message that configures a session, by the SDK's types; None without an SDK. Raises ValidationError."""
    settings = AgentSettings(agent, agent.prompt, agent.greeting)
    if engine == "deepgram" and find_spec("deepgram") is not None:
        from deepgram.agent.v1.types import AgentV1Settings

        return AgentV1Settings.model_validate(orjson.loads(DeepgramCodec().settings(settings)))
    if engine == "openai" and find_spec("openai") is not None:
        from openai.types.realtime import SessionUpdateEvent

        codec = RealtimeCodec(OPENAI)
        codec.configure(settings)
        return SessionUpdateEvent.model_validate(orjson.loads(codec.outgoing[0]))
    return None


def _unknown_fields(value: Any, path: str = "") -> Iterator[str]:
    """The SDK's models keep fields that their types do not have. Deepgram's providers have many such fields."""
    if isinstance(value, BaseModel):
        yield from (f"{path}{name}" for name in value.model_extra or {})
        for name in type(value).model_fields:
            yield from _unknown_fields(getattr(value, name), f"{path}{name}.")
