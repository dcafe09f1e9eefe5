"""Both ends of the dialect against each other: our codec, and what the local engine takes and says."""

import pytest

from gateway.engines import local_codec
from gateway.engines.agent_settings import AgentFunction, AgentSettings, HistoryMessage, ThinkEndpoint
from gateway.engines.deepgram_codec import KEEP_ALIVE, DeepgramCodec
from gateway.engines.events import (
    AgentAudioDone,
    AgentSaid,
    EngineFailed,
    EngineGreeted,
    FunctionCall,
    FunctionsRequested,
    InjectionRefused,
    PromptUpdated,
    SettingsApplied,
    TurnEnded,
    UserSaid,
    UserStartedSpeaking,
)

CODEC = DeepgramCodec()
END_CALL = AgentFunction("end_call", "Hang up.")
CALL = FunctionCall("1", "end_call", "{}")


def agent_settings(**fields):
    given = {
        "agent": "maya",
        "prompt": "You are Maya.",
        "greeting": "Hello.",
        "listen": {},
        "think": None,
        "speak": {},
        "functions": (END_CALL,),
        "endpoint": ThinkEndpoint("https://voice.example.com/v1/chat/completions", "the-bearer"),
    }
    return AgentSettings(**{**given, **fields})


def test_settings_are_understood():
    settings = local_codec.read(CODEC.settings(agent_settings()))
    assert settings == local_codec.Configured("You are Maya.", "Hello.", (END_CALL,), (), "the-bearer")


def test_a_conversation_goes_on():
    history = (HistoryMessage("user", "Hi."), HistoryMessage("assistant", "Hello."))
    settings = local_codec.read(CODEC.settings(agent_settings(greeting="", history=history)))
    assert (settings.greeting, settings.history) == ("", history)


def test_the_endpoint_counts_not_the_model_beside_it():
    settings = local_codec.read(CODEC.settings(agent_settings(think={"type": "open_ai", "model": "gpt-5.4-mini"})))
    assert settings.bearer == "the-bearer"


@pytest.mark.parametrize(
    "frame, message",
    [
        (CODEC.update_prompt("More."), local_codec.PromptAdded("More.")),
        (CODEC.update_think(agent_settings(prompt="Another.")), local_codec.ThinkReplaced("Another.", (END_CALL,))),
        (CODEC.say("One moment."), local_codec.SayWanted("One moment.")),
        (CODEC.say_instead("No."), local_codec.SayWanted("No.", instead=True)),
        (CODEC.force_end_turn(), local_codec.TurnForced()),
        (CODEC.function_result(CALL, "done"), local_codec.FunctionAnswered("1", "done")),
        (KEEP_ALIVE, None),
    ],
)
def test_every_wish_is_understood(frame, message):
    assert local_codec.read(frame) == message


@pytest.mark.parametrize(
    "frame, event",
    [
        (local_codec.GREETED, EngineGreeted("local")),
        (local_codec.SETTINGS_APPLIED, SettingsApplied()),
        (local_codec.PROMPT_UPDATED, PromptUpdated()),
        (local_codec.INJECTION_REFUSED, InjectionRefused()),
        (local_codec.USER_STARTED_SPEAKING, UserStartedSpeaking()),
        (local_codec.TURN_ENDED, TurnEnded()),
        (local_codec.AGENT_AUDIO_DONE, AgentAudioDone()),
        (local_codec.user_said("Hi."), UserSaid("Hi.")),
        (local_codec.agent_said("Hello."), AgentSaid("Hello.")),
        (local_codec.functions_requested([CALL]), FunctionsRequested((CALL,))),
        (local_codec.failed("INVALID_SETTINGS"), EngineFailed("INVALID_SETTINGS", retryable=False)),
    ],
)
def test_every_event_is_understood(frame, event):
    assert CODEC.receive(frame) == [event]
    assert not CODEC.unknown_types


def test_an_acknowledgement_is_known():
    assert CODEC.receive(local_codec.THINK_UPDATED) == []
    assert not CODEC.unknown_types
