"""Checks of the voice engines: that each answers and accepts the key, and offers what agents ask of it."""

import asyncio

from gateway.diagnostics.configuration import Configuration
from gateway.diagnostics.engine_settings import settings_problem, unknown_voice
from gateway.diagnostics.http_probe import HttpProbe
from gateway.diagnostics.results import CheckResult, off, ok, problem, warning
from gateway.engines.cascade import CascadeEngine
from gateway.engines.failover import GuardedEngine
from gateway.errors import GatewayError
from gateway.settings import Settings, is_url
from gateway.speech.config import SpeechConfig


async def check_engines(configuration: Configuration, probe: HttpProbe) -> list[CheckResult]:
    """The engines, and the speech servers that replace the local engine's models."""
    engines = configuration.engines.engines
    checks = [probe_engine("engine" if len(engines) == 1 else f"engine {name}", one) for name, one in engines.items()]
    settings = await asyncio.to_thread(_agents, configuration)  # imports SDKs, which takes seconds
    found = [*await asyncio.gather(*checks), *settings]
    if "local" in engines and isinstance(engines["local"].engine, CascadeEngine):
        found += await _speech_servers(configuration.settings, probe)
    return found


async def probe_engine(check: str, engine: GuardedEngine) -> CheckResult:
    """Whether the engine answers and accepts the key."""
    try:
        return ok(check, await engine.engine.probe())
    except GatewayError as error:
        return problem(check, str(error))


def _agents(configuration: Configuration) -> list[CheckResult]:
    """What each agent sets for its engines, by the types of their official SDKs where installed, and its voices."""
    found, todo = [], "correct the agent in gateway.toml"
    for agent in configuration.agents:
        for engine in configuration.engines.by_agent[agent.name]:
            check = f"{engine.name} of {agent.name}"
            if wrong := settings_problem(engine.name, agent):
                found.append(problem(check, f"{engine.name} does not take {wrong}", todo))
                continue
            voice = unknown_voice(engine.name, agent)
            if voice is not None and voice.is_listed:
                meant = f"; did you mean {voice.similar}?" if voice.similar else ""
                found.append(warning(check, f"voice {voice.name} is not in the list for {voice.provider}{meant}", todo))
            elif voice is not None:
                found.append(off(check, f"voice {voice.name} not checked; there is no list for {voice.provider}"))
    return found


async def _speech_servers(settings: Settings, probe: HttpProbe) -> list[CheckResult]:
    config = SpeechConfig.read(settings.local_recogniser, settings.local_voice)
    servers = {"LOCAL_RECOGNISER": config.recogniser, "LOCAL_VOICE": config.voice}
    checks = [
        probe.check_server(
            name, f"{url}/models", settings.local_speech_api_key, keys="LOCAL_SPEECH_API_KEY", address=name
        )
        for name, url in servers.items()
        if is_url(url, ("http", "https"))
    ]
    return list(await asyncio.gather(*checks))
