"""
The voice engines, and which one this gateway uses.

To add an engine: write `engines/NAME.py` with a `VoiceEngine` and its `EngineSession`, add what it needs to
`settings.py` (and to `agents.py`, for options of an agent), and add a function to `ENGINES` that makes it from the
settings. VOICE_ENGINE then takes its name. Nothing else in the gateway depends on which engine it is.
"""

from collections.abc import Callable, Mapping
from typing import Final

from gateway.engines.deepgram import DeepgramEngine, DeepgramTimeouts
from gateway.engines.interface import NoEngine, VoiceEngine
from gateway.engines.local import LocalEngine
from gateway.engines.speech_worker import SpeechWorkerClient, SpeechWorkerTimeouts
from gateway.errors import SettingsError
from gateway.extras import how_to_install, is_installed
from gateway.settings import Settings
from gateway.speech.config import SpeechConfig
from gateway.websocket.interface import Connector, tls_context

MakeEngine = Callable[[Settings, Connector], VoiceEngine]
"""Makes an engine. Raises SettingsError, with one line, for what a person has to correct."""


def make_engine(settings: Settings, connect: Connector, engines: Mapping[str, MakeEngine]) -> VoiceEngine:
    """The engine that the settings name. `connect` opens its sockets; `engines` is `ENGINES`, except in tests."""
    if settings.engine not in engines:
        raise SettingsError(f"VOICE_ENGINE is {settings.engine!r}; use one of: {', '.join(sorted(engines))}")
    return engines[settings.engine](settings, connect)


def _deepgram(settings: Settings, connect: Connector) -> VoiceEngine:
    if settings.deepgram_api_key is None:
        raise SettingsError("VOICE_ENGINE is deepgram but DEEPGRAM_API_KEY is not set")
    tls_context()  # reads the machine's certificates now, not during the first call
    return DeepgramEngine(connect, settings.deepgram_agent_url, settings.deepgram_api_key, DeepgramTimeouts())


def _local(settings: Settings, connect: Connector) -> VoiceEngine:
    SpeechConfig.read(settings.local_recogniser, settings.local_voice)
    if not is_installed("local"):
        if settings.voice_engine:
            raise SettingsError(f"VOICE_ENGINE is local but its packages are missing; run: {how_to_install('local')}")
        return NoEngine()
    key = settings.local_speech_api_key
    environ = {
        "LOCAL_RECOGNISER": settings.local_recogniser,
        "LOCAL_VOICE": settings.local_voice,
        "LOCAL_SPEECH_API_KEY": key.reveal() if key is not None else "",
    }
    return LocalEngine(SpeechWorkerClient(environ, SpeechWorkerTimeouts()), max_calls=settings.local_engine_calls)


ENGINES: Final[Mapping[str, MakeEngine]] = {"deepgram": _deepgram, "local": _local}
