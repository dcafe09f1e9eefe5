"""Every engine has the interface."""

from typing import Any, cast, get_args

import pytest

from gateway.engines import interface
from gateway.engines.cascade import CascadeEngine, CascadeSession
from gateway.engines.deepgram import DeepgramEngine, DeepgramSession, DeepgramTimeouts
from gateway.engines.interface import EngineEvent, EngineSession, NoEngine, VoiceEngine
from gateway.engines.local import LocalSpeech, SpeechWorkerTimeouts
from gateway.llm.chat import LlmEndpoint
from gateway.settings import Secret
from tests.fakes.echo_engine import EchoEngine, EchoSession

LOCAL = LocalSpeech({}, SpeechWorkerTimeouts())
ENGINES: list[VoiceEngine] = [  # the type checker compares each with the protocol
    DeepgramEngine(cast(Any, None), "", Secret(""), DeepgramTimeouts()),
    CascadeEngine("local", LOCAL, LOCAL),
    NoEngine(),
    EchoEngine(),
]
SESSIONS: list[type[EngineSession]] = [DeepgramSession, CascadeSession, EchoSession]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: engine.name)
def test_engine_names_itself_in_health(engine: VoiceEngine) -> None:
    assert engine.health()["engine"] == engine.name


@pytest.mark.parametrize("session", SESSIONS)
def test_session_takes_every_command(session: type[EngineSession]) -> None:
    commands = {name for name in vars(EngineSession) if not name.startswith("_")}
    assert commands <= {*dir(session), *session.__annotations__}
    assert {"send_audio", "say", "update_instructions", "truncate", "answer_tool", "close"} <= commands


def test_every_event_is_in_the_union() -> None:
    events = set(get_args(EngineEvent))
    names = (
        "Engine",
        "Settings",
        "User",
        "Turn",
        "AgentSaid",
        "AgentAudioDone",
        "Words",
        "FunctionsR",
        "FunctionsC",
        "Injection",
    )
    defined = {
        kind
        for name, kind in vars(interface).items()
        if name.startswith(names) and isinstance(kind, type) and hasattr(kind, "__dataclass_fields__")
    }
    assert defined <= events


def test_bearer_is_not_in_the_repr() -> None:
    assert "secret" not in repr(LlmEndpoint("https://voice.example.com", "secret", cast(Any, None)))
