"""Both ends of the dialect against each other: our codec, and what the local engine takes and says."""

import pytest

from gateway.engines import local
from gateway.engines.brief import AgentFunction, Brief, Spoken, ThinkEndpoint
from gateway.engines.deepgram import KEEP_ALIVE, DeepgramCodec
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


def brief(**fields):
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
    return Brief(**{**given, **fields})


def test_settings_are_understood():
    settings = local.read(CODEC.settings(brief()))
    assert settings == local.Configured("You are Maya.", "Hello.", (END_CALL,), (), "the-bearer")


def test_a_conversation_goes_on():
    history = (Spoken("user", "Hi."), Spoken("assistant", "Hello."))
    settings = local.read(CODEC.settings(brief(greeting="", history=history)))
    assert (settings.greeting, settings.history) == ("", history)


def test_the_endpoint_counts_not_the_model_beside_it():
    settings = local.read(CODEC.settings(brief(think={"type": "open_ai", "model": "gpt-5.4-mini"})))
    assert settings.bearer == "the-bearer"


@pytest.mark.parametrize(
    "frame, message",
    [
        (CODEC.update_prompt("More."), local.PromptAdded("More.")),
        (CODEC.update_think(brief(prompt="Another.")), local.ThinkReplaced("Another.", (END_CALL,))),
        (CODEC.say("One moment."), local.SayWanted("One moment.")),
        (CODEC.say_instead("No."), local.SayWanted("No.", instead=True)),
        (CODEC.force_end_turn(), local.TurnForced()),
        (CODEC.function_result(CALL, "done"), local.FunctionAnswered("1", "done")),
        (KEEP_ALIVE, None),
    ],
)
def test_every_wish_is_understood(frame, message):
    assert local.read(frame) == message


@pytest.mark.parametrize(
    "frame, event",
    [
        (local.GREETED, EngineGreeted("local")),
        (local.SETTINGS_APPLIED, SettingsApplied()),
        (local.PROMPT_UPDATED, PromptUpdated()),
        (local.INJECTION_REFUSED, InjectionRefused()),
        (local.USER_STARTED_SPEAKING, UserStartedSpeaking()),
        (local.TURN_ENDED, TurnEnded()),
        (local.AGENT_AUDIO_DONE, AgentAudioDone()),
        (local.user_said("Hi."), UserSaid("Hi.")),
        (local.agent_said("Hello."), AgentSaid("Hello.")),
        (local.functions_requested([CALL]), FunctionsRequested((CALL,))),
        (local.failed("INVALID_SETTINGS"), EngineFailed("INVALID_SETTINGS", retryable=False)),
    ],
)
def test_every_event_is_understood(frame, event):
    assert CODEC.receive(frame) == [event]
    assert not CODEC.unknown_types


def test_an_acknowledgement_is_known():
    assert CODEC.receive(local.THINK_UPDATED) == []
    assert not CODEC.unknown_types
