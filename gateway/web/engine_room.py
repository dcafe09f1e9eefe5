"""The voice engine in force: one across the network, the local one, or none."""

import contextlib
import os
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any, Final

from gateway.calls.engine_connection import EngineConfig
from gateway.engines.local import URL, LocalEngine
from gateway.engines.local_mind import LocalMinds
from gateway.engines.speech_worker import SpeechWorkerClient
from gateway.llm.endpoint_tokens import EndpointTokens
from gateway.maintenance import at_work
from gateway.settings import Settings
from gateway.web.blueprint import Blueprint

CALLS_PER_CORE: Final = 4
"""What a core carries with the local engine, recognition and voice included (gateway bench --engine local)."""


@dataclass(frozen=True)
class EngineRoom:
    """How calls reach the engine, and how it is."""

    access: EngineConfig | None
    host: SpeechWorkerClient | None = None

    @property
    def is_ready(self) -> bool:
        """False only while the local engine loads its models."""
        return self.host is None or self.host.has_started

    def state(self) -> dict[str, Any]:
        if self.host is not None:
            problem = {"engine_problem": self.host.refusal} if self.host.refusal else {}
            return {"engine": "local", "engine_state": self.host.state, **problem}
        return {"engine": "deepgram" if self.access is not None else "not set up"}


@contextlib.asynccontextmanager
async def engine_room(blueprint: Blueprint, endpoint_tokens: EndpointTokens) -> AsyncIterator[EngineRoom]:
    """The local engine's process lives as long as this does; the other engine needs nothing."""
    if not blueprint.engine_is_local:
        yield EngineRoom(blueprint.engine)
        return
    host = SpeechWorkerClient(_environ(blueprint.settings))
    most_calls = blueprint.settings.local_engine_calls or CALLS_PER_CORE * (os.cpu_count() or 1)
    engine = LocalEngine(host, LocalMinds(endpoint_tokens).find, most_calls=most_calls)
    async with at_work(host.run()):
        yield EngineRoom(EngineConfig(engine.connect, URL, name="local"), host)


def _environ(settings: Settings) -> dict[str, str]:
    key = settings.local_speech_api_key
    return {
        "LOCAL_RECOGNISER": settings.local_recogniser,
        "LOCAL_VOICE": settings.local_voice,
        "LOCAL_SPEECH_API_KEY": key.reveal() if key is not None else "",
    }
