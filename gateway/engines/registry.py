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
from typing import Any, Final

from gateway.agents import Agent
from gateway.engines.cascade import CascadeEngine
from gateway.engines.deepgram import DeepgramEngine, DeepgramTimeouts
from gateway.engines.failover import GuardedEngine
from gateway.engines.interface import NoEngine, VoiceEngine
from gateway.engines.local import LocalSpeech, SpeechWorkerTimeouts
from gateway.engines.realtime import RealtimeEngine, RealtimeTimeouts
from gateway.engines.realtime_dialect import OPENAI, XAI
from gateway.engines.speech_registry import SpeechServices
from gateway.errors import SettingsError
from gateway.extras import how_to_install, is_installed
from gateway.settings import ENGINE_KEYS, Secret, Settings
from gateway.speech.config import SpeechConfig
from gateway.websocket.interface import Connector, tls_context

MakeEngine = Callable[[Settings, Connector], VoiceEngine]
"""Makes an engine. Raises SettingsError, with one line, for what a person has to correct."""


class EngineDirectory:
    """The engines in use, and those of each agent in order of preference."""

    def __init__(
        self, settings: Settings, agents: Iterable[Agent], connect: Connector, makers: Mapping[str, MakeEngine]
    ) -> None:
        """`connect` opens the engines' sockets; `makers` is `ENGINES`, except in tests. Raises as `check` does."""
        self.engines: dict[str, GuardedEngine] = {}
        """By name: those that VOICE_ENGINE or an agent names, and no others."""
        self.by_agent: dict[str, tuple[GuardedEngine, ...]] = {}
        """By the agent's name."""
        self._settings = settings
        self._connect = connect
        self._makers = makers
        self._started: asyncio.Queue[GuardedEngine] = asyncio.Queue()
        """Engines that `run` has to start."""
        self._default = "VOICE_ENGINE" if settings.voice_engine else ""
        if self._default:
            for name in settings.engines:
                self._make(name, self._default)
        for agent in agents:
            self.prepare(agent)
        self._awaited = frozenset(self.engines.values())
        """Those that have to start before the gateway is ready."""

    def check(self, agent: Agent) -> None:
        """Raise SettingsError for an engine that is unknown or not set up, with the setting that names it."""
        EngineDirectory(self._settings, [agent], self._connect, self._makers)

    def prepare(self, agent: Agent) -> None:
        """Make the agent's engines that do not exist yet. An engine that no agent uses any more keeps running."""
        self.by_agent[agent.name] = self.of(agent)

    @property
    def default_names(self) -> tuple[str, ...]:
        """The engines of an agent that names none."""
        return tuple(self._settings.engines)

    @property
    def usable_names(self) -> list[str]:
        """The engines that an agent can name: those whose key is set, or that are installed."""
        names = [name for name in self._makers if self._settings.has_engine_key(name)]
        return [name for name in names if name != "local" or is_installed("local")]

    @property
    def is_ready(self) -> bool:
        """Whether each agent has an engine that has started. Engines made at run time are not waited for."""
        return all(
            any(one.engine.is_ready or one not in self._awaited for one in engines)
            for engines in self.by_agent.values()
        )

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
        """Run the background work of all engines, including those made later, until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                one = await self._started.get()
                group.create_task(one.engine.run(), name=one.name)

    # Making

    def of(self, agent: Agent) -> tuple[GuardedEngine, ...]:
        """The engines of this version of the agent, made if necessary. Raises as `check` does."""
        own = f"gateway.toml, [agents.{agent.name}]: engine"
        named, where = (agent.engines, own) if agent.engines else (self._settings.engines, self._default)
        return tuple(
            self._make_combined(name, where, agent) if "+" in name else self._make(name, where) for name in named
        )

    def _make(self, name: str, where: str) -> GuardedEngine:
        known = self.engines.get(name)
        if known is not None and not (where and isinstance(known.engine, NoEngine)):
            return known
        if name not in self._makers:
            raise SettingsError(f"{where} is {name!r}; use one of: {', '.join(sorted(self._makers))}")
        if not self._settings.has_engine_key(name):
            raise SettingsError(f"{where} is {name} but {ENGINE_KEYS[name]} is not set")
        if name == "local" and not is_installed("local"):
            if where:
                raise SettingsError(f"{where} is local but its packages are missing; run: {how_to_install('local')}")
            return self._kept(name, NoEngine)
        return self._kept(name, lambda: self._makers[name](self._settings, self._connect))

    def _make_combined(self, name: str, where: str, agent: Agent) -> GuardedEngine:
        """Recogniser and voice, which agents share that have the same language and patience."""
        options = [agent.language] * (agent.language != "en") + [agent.patience] * (agent.patience != "normal")
        key = " ".join([name, *options])
        local = functools.partial(_local_parts, self._make, where)
        services = SpeechServices(self._settings, self._connect, local, where, agent)
        return self._kept(key, lambda: services.engine(key, *name.split("+", 1)))

    def _kept(self, key: str, make: Callable[[], VoiceEngine]) -> GuardedEngine:
        if key not in self.engines:
            self.engines[key] = GuardedEngine(make())
            self._started.put_nowait(self.engines[key])
        return self.engines[key]


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
    local = LocalSpeech(environ, SpeechWorkerTimeouts(), max_calls=settings.local_engine_calls)
    return CascadeEngine(local.name, local, local)


ENGINES: Final[Mapping[str, MakeEngine]] = {"deepgram": _deepgram, "openai": _openai, "xai": _xai, "local": _local}
