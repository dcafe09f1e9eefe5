"""
The voice engines, and which of them each agent uses.

To add an engine: write `engines/NAME.py` with a `VoiceEngine` and its `EngineSession`, add what it needs to
`settings.py` (and to `agents.py`, for options of an agent), and add a function to `ENGINES` that makes it from the
settings; its key, if it needs one, to `ENGINE_KEYS` in `settings.py`. VOICE_ENGINE and `engine` of an agent then take
its name. Nothing else in the gateway depends on which engine it is.
"""

import asyncio
import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.agents import Agent
from gateway.engines.cascade import CascadeEngine
from gateway.engines.deepgram import DeepgramEngine, DeepgramTimeouts
from gateway.engines.failover import GuardedEngine
from gateway.engines.interface import NoEngine, VoiceEngine
from gateway.engines.local import LocalSpeech
from gateway.engines.realtime import RealtimeEngine, RealtimeTimeouts
from gateway.engines.realtime_dialect import OPENAI, XAI
from gateway.engines.speech_registry import SpeechServices
from gateway.engines.speech_worker import SpeechWorkerClient, SpeechWorkerTimeouts
from gateway.errors import SettingsError
from gateway.extras import how_to_install, is_installed
from gateway.settings import ENGINE_KEYS, Secret, Settings
from gateway.speech.config import SpeechConfig
from gateway.websocket.interface import Connector, tls_context

MakeEngine = Callable[[Settings, Connector], VoiceEngine]
"""Makes an engine. Raises SettingsError, with one line, for what a person has to correct."""


@dataclass(frozen=True)
class EngineDirectory:
    """The engines in use, and those of each agent in order of preference."""

    engines: Mapping[str, GuardedEngine]
    """By name: those that VOICE_ENGINE or an agent names, and no others."""
    by_agent: Mapping[str, tuple[GuardedEngine, ...]]
    """By the agent's name."""

    @property
    def is_ready(self) -> bool:
        """Whether each agent has an engine that has started."""
        return all(any(one.engine.is_ready for one in engines) for engines in self.by_agent.values())

    def has_llm(self, agent: str) -> bool:
        """Whether the agent needs no language model of its own."""
        return all(one.engine.has_llm for one in self.by_agent[agent])

    def health(self) -> dict[str, Any]:
        """Fields for /health: the first engine's and, if there are several, the state of each."""
        now = asyncio.get_running_loop().time()
        first, *others = self.engines.values()
        states = {name: one.engine.health() | one.health(now) for name, one in self.engines.items()} if others else {}
        return {**first.engine.health(), **({"engines": states} if states else {})}

    async def run(self) -> None:
        """Background work of all engines, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for one in self.engines.values():
                group.create_task(one.engine.run(), name=one.name)


def make_engines(
    settings: Settings, agents: Iterable[Agent], connect: Connector, makers: Mapping[str, MakeEngine]
) -> EngineDirectory:
    """
    The engines of these agents. `connect` opens their sockets; `makers` is `ENGINES`, except in tests.

    Raises SettingsError for an engine that is unknown or not set up, with the setting that names it.
    """
    made: dict[str, GuardedEngine] = {}

    def make(name: str, where: str) -> GuardedEngine:
        if name not in makers:
            raise SettingsError(f"{where} is {name!r}; use one of: {', '.join(sorted(makers))}")
        if not settings.has_engine_key(name):
            raise SettingsError(f"{where} is {name} but {ENGINE_KEYS[name]} is not set")
        if name == "local" and not is_installed("local"):
            if where:
                raise SettingsError(f"{where} is local but its packages are missing; run: {how_to_install('local')}")
            return made.setdefault(name, GuardedEngine(NoEngine()))
        if name not in made:
            made[name] = GuardedEngine(makers[name](settings, connect))
        return made[name]

    def make_combined(name: str, where: str, agent: Agent) -> GuardedEngine:
        """Recogniser and voice, which agents share that have the same language and patience."""
        options = [agent.language] * (agent.language != "en") + [agent.patience] * (agent.patience != "normal")
        key = " ".join([name, *options])
        if key not in made:
            services = SpeechServices(settings, connect, functools.partial(_local_parts, make, where), where, agent)
            made[key] = GuardedEngine(services.engine(key, *name.split("+", 1)))
        return made[key]

    by_agent = {}
    default = "VOICE_ENGINE" if settings.voice_engine else ""
    if default:
        for name in settings.engines:
            make(name, default)
    for agent in agents:
        own = f"gateway.toml, [agents.{agent.name}]: engine"
        named, where = (agent.engines, own) if agent.engines else (settings.engines, default)
        by_agent[agent.name] = tuple(
            make_combined(name, where, agent) if "+" in name else make(name, where) for name in named
        )
    return EngineDirectory(made, by_agent)


def _local_parts(make: Callable[[str, str], GuardedEngine], where: str) -> LocalSpeech:
    """Engines with a local part share the speech process of the local engine."""
    engine = make("local", where).engine
    assert isinstance(engine, CascadeEngine) and isinstance(engine.recogniser, LocalSpeech)
    return engine.recogniser


def _deepgram(settings: Settings, connect: Connector) -> VoiceEngine:
    tls_context()  # reads the machine's certificates now, not during the first call
    key = settings.deepgram_api_key or Secret("")
    return DeepgramEngine(connect, settings.deepgram_agent_url, key, DeepgramTimeouts())


def _openai(settings: Settings, connect: Connector) -> VoiceEngine:
    tls_context()
    key = settings.openai_api_key or Secret("")
    return RealtimeEngine(connect, settings.openai_realtime_url, key, OPENAI, RealtimeTimeouts())


def _xai(settings: Settings, connect: Connector) -> VoiceEngine:
    tls_context()
    key = settings.xai_api_key or Secret("")
    return RealtimeEngine(connect, settings.xai_realtime_url, key, XAI, RealtimeTimeouts())


def _local(settings: Settings, connect: Connector) -> VoiceEngine:
    SpeechConfig.read(settings.local_recogniser, settings.local_voice)
    key = settings.local_speech_api_key
    environ = {
        "LOCAL_RECOGNISER": settings.local_recogniser,
        "LOCAL_VOICE": settings.local_voice,
        "LOCAL_SPEECH_API_KEY": key.reveal() if key is not None else "",
    }
    worker = SpeechWorkerClient(environ, SpeechWorkerTimeouts())
    local = LocalSpeech(worker, max_calls=settings.local_engine_calls)
    return CascadeEngine(local.name, local, local)


ENGINES: Final[Mapping[str, MakeEngine]] = {"deepgram": _deepgram, "openai": _openai, "xai": _xai, "local": _local}
