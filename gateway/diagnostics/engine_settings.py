"""
What agents set for their engines: by the types of the engines' official SDKs, and by lists of their voices.

An SDK is imported only here, and only where it is installed: the gateway itself needs none of them. Voices are listed
here, so that no SDK or key is needed to find a misspelt one. An unknown name may still be right: providers add voices,
and accounts have their own.
"""

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

import orjson
from pydantic import BaseModel, ValidationError

from gateway.agents import Agent
from gateway.engines.deepgram_codec import DeepgramCodec
from gateway.engines.interface import AgentSettings
from gateway.engines.realtime_codec import RealtimeCodec
from gateway.engines.realtime_dialect import OPENAI, OPENAI_VOICES, XAI

# As in the types of deepgram-sdk 7.
_DEEPGRAM: Final[Mapping[tuple[str, str], str]] = {
    ("aura", "en"): ("angus arcas asteria athena helios hera luna orion orpheus perseus stella zeus"),
    ("aura-2", "en"): (
        "amalthea andromeda apollo arcas aries asteria athena atlas aurora callista cora cordelia delia draco "
        "electra harmonia helena hera hermes hyperion iris janus juno jupiter luna mars minerva neptune "
        "odysseus ophelia orion orpheus pandora phoebe pluto saturn selene thalia theia vesta zeus"
    ),
    ("aura-2", "es"): ("alvaro aquila carina celeste diana estrella javier nestor selena sirio"),
    ("flux", "en"): (
        "alexis bree brittany brooke bruce cliff cole colin conor donovan drew elise gemma haley hannah "
        "heather jack kai kelsey kit maeve marcelo marcus meena meghan miles naveen paige priya rufus sean "
        "sharon sienna tanner wade wes"
    ),
}
_LISTS: Final[Mapping[str, frozenset[str]]] = {
    "deepgram": frozenset(
        f"{family}-{name}-{language}" for (family, language), names in _DEEPGRAM.items() for name in names.split()
    ),
    "openai": OPENAI_VOICES,
}
_MAIN_VOICES: Final[Mapping[str, frozenset[str]]] = {"xai": frozenset({"eve", "ara", "rex", "sal", "leo"})}
"""Of providers that have more than these."""
_DIALECTS: Final = {dialect.name: dialect for dialect in (OPENAI, XAI)}


# The types of the SDKs


def settings_problem(engine: str, agent: Agent) -> str:
    """The first field that the SDK's types do not accept; empty without one, or without the SDK."""
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


# Voices


@dataclass(frozen=True)
class UnknownVoice:
    """A voice that no list has. `is_listed`: its provider has a list, so the name is probably wrong."""

    provider: str
    name: str
    is_listed: bool = False
    similar: str = ""


def unknown_voice(engine: str, agent: Agent) -> UnknownVoice | None:
    """The voice that the agent has with this engine, unless it is known, an own one, or the local engine's."""
    provider, name = _voice(engine, agent)
    if provider == "local" or not isinstance(name, str) or name.lower() in _MAIN_VOICES.get(provider, ()):
        return None
    if (known := _LISTS.get(provider)) is None:
        return UnknownVoice(provider, name)
    if name in known:
        return None
    similar = difflib.get_close_matches(name, sorted(known), n=1)
    return UnknownVoice(provider, name, is_listed=True, similar="".join(similar))


def _voice(engine: str, agent: Agent) -> tuple[str, Any]:
    """What synthesises speech, and its voice: a name, or a table with the id of one's own."""
    _, is_combined, speak = engine.partition("+")
    if is_combined:  # as deepgram/flux-general-en+elevenlabs/VOICE/MODEL
        provider, _, rest = speak.partition("/")
        return provider, rest.partition("/")[0]
    if engine == "deepgram":
        return agent.speak["type"], agent.speak.get("model", "")
    if (dialect := _DIALECTS.get(engine)) is None:
        return "local", ""
    session = dialect.session(AgentSettings(agent, agent.prompt, agent.greeting))
    return engine, session["voice"] if dialect.is_flat else session["audio"]["output"]["voice"]
