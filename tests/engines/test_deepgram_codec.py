import json
from dataclasses import replace
from typing import Any, cast, get_args

import pytest
from deepgram.agent.v1.socket_client import V1SocketClientResponse
from deepgram.agent.v1.types import AgentV1Settings, AgentV1UpdateListen
from hypothesis import given
from hypothesis import strategies as st

from gateway.agents import Agent
from gateway.engines.deepgram_codec import DeepgramCodec
from gateway.engines.interface import (
    AgentAudioDone,
    AgentFunction,
    AgentSaid,
    AgentSettings,
    EngineEvent,
    EngineFailed,
    EngineGreeted,
    EngineWarned,
    FunctionCall,
    FunctionsCancelled,
    FunctionsRequested,
    HistoryMessage,
    HistoryToolCall,
    InjectionRefused,
    LatencyReported,
    PromptUpdated,
    SettingsApplied,
    TurnEnded,
    UserSaid,
    UserStartedSpeaking,
    WordEnd,
    WordsTimed,
)
from gateway.errors import RemoteProtocolError
from gateway.llm.chat import LanguageModel, LlmEndpoint
from tests.fakes.deepgram_settings import check_listen

MAYA = Agent("maya", "You are Maya.")
NEW_CALL = AgentSettings(
    agent=MAYA,
    prompt="You are Maya.",
    greeting="Hello, this is Maya.",
    functions=(AgentFunction("end_call", "Hang up."), AgentFunction("hours", "Opening hours.", speculative=True)),
)
RESUMED_CALL = AgentSettings(
    agent=MAYA,
    prompt="You are Maya.",
    history=(
        HistoryMessage("user", "Is my bike ready?"),
        HistoryToolCall(FunctionCall("f1", "order_status", '{"order": "A12"}', "signed"), '{"state": "waiting"}'),
        HistoryMessage("assistant", "It will be on Friday."),
    ),
)


def receive(message: dict[str, Any]) -> list[EngineEvent]:
    return DeepgramCodec().receive(json.dumps(message))


@pytest.mark.parametrize(
    ("message", "event"),
    [
        ({"type": "Welcome", "request_id": "r1"}, EngineGreeted("r1")),
        ({"type": "SettingsApplied"}, SettingsApplied()),
        ({"type": "ConversationText", "role": "user", "content": " Hello. "}, UserSaid("Hello.")),
        ({"type": "ConversationText", "role": "assistant", "content": "Hi."}, AgentSaid("Hi.")),
        ({"type": "UserStartedSpeaking"}, UserStartedSpeaking()),
        ({"type": "AgentAudioDone"}, AgentAudioDone()),
        ({"type": "EndOfTurn", "trigger": "eot_threshold"}, TurnEnded()),
        ({"type": "LatencyReport", "tts_latency": 0.2}, LatencyReported(tts=0.2)),
        ({"type": "LatencyReport", "ttt_text_latency": 1, "total_latency": 2}, LatencyReported(llm=1.0)),
        ({"type": "PromptUpdated"}, PromptUpdated()),
        ({"type": "InjectionRefused"}, InjectionRefused()),
        ({"type": "Warning", "code": "INJECT_AGENT_MESSAGE_DURING_USER_SPEECH"}, InjectionRefused()),
        ({"type": "Warning", "code": "SLOW_THINK_REQUEST"}, EngineWarned("SLOW_THINK_REQUEST")),
        ({"type": "Error", "code": "INVALID_SETTINGS"}, EngineFailed("INVALID_SETTINGS", retryable=False)),
        ({"type": "Error", "code": "SERVER_GOING_AWAY"}, EngineFailed("SERVER_GOING_AWAY", retryable=True)),
        ({"type": "FunctionCallCancelled", "functions": [{"id": "f1", "name": "x"}]}, FunctionsCancelled(("f1",))),
    ],
)
def test_message_becomes_its_event(message: dict[str, Any], event: EngineEvent) -> None:
    assert receive(message) == [event]


def test_only_our_own_functions_are_asked_for() -> None:
    functions = [
        {"id": "f1", "name": "end_call", "arguments": "", "client_side": True},
        {"id": "f2", "name": "weather", "arguments": "{}", "client_side": False},
    ]
    assert receive({"type": "FunctionCallRequest", "functions": functions}) == [
        FunctionsRequested((FunctionCall("f1", "end_call", ""),))
    ]


@pytest.mark.parametrize("kind", ["History", "AgentThinking", "AgentStartedSpeaking", "ThinkUpdated"])
def test_known_but_idle_types_say_nothing(kind: str) -> None:
    codec = DeepgramCodec()
    assert codec.receive(json.dumps({"type": kind, "role": "user", "content": "Hello."})) == []
    assert codec.unknown_types == set()


def test_unknown_type_is_remembered() -> None:
    codec = DeepgramCodec()
    assert codec.receive('{"type": "SomethingNew"}') == []
    assert codec.unknown_types == {"SomethingNew"}


def sdk_message_types() -> set[str]:
    """The type of every message that the SDK says the server may send."""
    models = [model for model in get_args(V1SocketClientResponse) if hasattr(model, "model_fields")]
    return {get_args(model.model_fields["type"].annotation)[0] for model in models if "type" in model.model_fields}


def test_every_message_of_the_sdk_is_known() -> None:
    codec = DeepgramCodec()
    types = sdk_message_types()
    assert {"Welcome", "ConversationText", "Error", "FunctionCallRequest"} <= types
    for kind in types:
        codec.receive(json.dumps({"type": kind}))
    assert codec.unknown_types == set()


@pytest.mark.parametrize("text", ["hello", "[]", "{}", '{"type": 5}', b"\xff"])
def test_text_without_a_type_is_blamed(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        DeepgramCodec().receive(text)


@given(st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.text(max_size=5) | st.lists(st.none())))
def test_odd_fields_never_break_it(fields: dict[str, Any]) -> None:
    for kind in ("ConversationText", "FunctionCallRequest", "FunctionCallCancelled", "LatencyReport", "Error"):
        receive({**fields, "type": kind})


@pytest.mark.parametrize("agent_settings", [NEW_CALL, RESUMED_CALL])
def test_settings_pass_the_sdk_unchanged(agent_settings: AgentSettings) -> None:
    """The official model takes our Settings and gives them back as they were."""
    settings = json.loads(DeepgramCodec().settings(agent_settings))
    assert json.loads(json.dumps(AgentV1Settings.model_validate(settings).dict())) == settings


def test_settings_say_mu_law_both_ways() -> None:
    settings = json.loads(DeepgramCodec().settings(NEW_CALL))
    assert settings["audio"] == {
        "input": {"encoding": "mulaw", "sample_rate": 8000},
        "output": {"encoding": "mulaw", "sample_rate": 8000, "container": "none"},
    }


def test_only_harmless_functions_run_on_a_guess() -> None:
    functions = json.loads(DeepgramCodec().settings(NEW_CALL))["agent"]["think"]["functions"]
    assert [(function["name"], function["defer_until_eot"]) for function in functions] == [
        ("end_call", True),
        ("hours", False),
    ]


def test_history_comes_without_a_greeting() -> None:
    agent = json.loads(DeepgramCodec().settings(RESUMED_CALL))["agent"]
    assert "greeting" not in agent
    assert agent["context"]["messages"] == [
        {"type": "History", "role": "user", "content": "Is my bike ready?"},
        {
            "type": "History",
            "function_calls": [
                {
                    "id": "f1",
                    "name": "order_status",
                    "client_side": True,
                    "arguments": '{"order": "A12"}',
                    "response": '{"state": "waiting"}',
                    "thought_signature": "signed",
                }
            ],
        },
        {"type": "History", "role": "assistant", "content": "It will be on Friday."},
    ]


def requested(codec: DeepgramCodec) -> None:
    functions = [{"id": "f1", "name": "end_call", "arguments": "", "client_side": True}]
    codec.receive(json.dumps({"type": "FunctionCallRequest", "functions": functions}))


def test_result_names_its_function() -> None:
    codec = DeepgramCodec()
    requested(codec)
    answer = codec.answer_tool("f1", "ok")
    assert answer is not None
    assert json.loads(answer) == {"type": "FunctionCallResponse", "id": "f1", "name": "end_call", "content": "ok"}


def test_only_open_calls_are_answered() -> None:
    codec = DeepgramCodec()
    assert codec.answer_tool("f1", "ok") is None
    requested(codec)
    codec.receive('{"type": "FunctionCallCancelled", "functions": [{"id": "f1", "name": "end_call"}]}')
    assert codec.answer_tool("f1", "ok") is None


@pytest.mark.parametrize(
    ("engine_thinks", "models"), [(False, ["voice-gateway"]), (True, ["voice-gateway", "gpt-5.4-mini"])]
)
def test_own_language_model_comes_first(engine_thinks: bool, models: list[str]) -> None:
    endpoint = LlmEndpoint("https://voice.example.com/v1/chat/completions", "the-bearer", cast(LanguageModel, None))
    agent = replace(MAYA, engine_thinks=engine_thinks)
    think = json.loads(DeepgramCodec().settings(AgentSettings(agent, "You are Maya.", llm=endpoint)))["agent"]["think"]
    thinks = think if isinstance(think, list) else [think]
    assert [item["provider"]["model"] for item in thinks] == models
    assert thinks[0]["endpoint"] == {"url": endpoint.url, "headers": {"authorization": "Bearer the-bearer"}}
    assert "the-bearer" not in repr(endpoint)


@pytest.mark.parametrize(("interrupt", "behavior"), [(False, "queue"), (True, "interrupt")])
def test_text_is_queued_or_interrupts(interrupt: bool, behavior: str) -> None:
    message = json.loads(DeepgramCodec().say("One moment.", interrupt=interrupt))
    assert message == {"type": "InjectAgentMessage", "message": "One moment.", "behavior": behavior}


def test_turn_without_words_ends_as_well() -> None:
    assert DeepgramCodec().receive(b'{"type": "ConversationText", "role": "user", "content": " "}') == [TurnEnded()]


def test_nul_characters_are_removed() -> None:
    assert receive({"type": "ConversationText", "role": "user", "content": "Hel\0lo."}) == [UserSaid("Hello.")]


@pytest.mark.parametrize(
    "event",
    [
        EngineGreeted("local"),
        SettingsApplied(),
        UserStartedSpeaking(),
        TurnEnded(),
        TurnEnded("u1"),
        UserSaid("Hello."),
        UserSaid("", "u1"),
        AgentSaid("Hi."),
        AgentAudioDone(),
        FunctionsRequested((FunctionCall("f1", "end_call", "{}"),)),
        FunctionsCancelled(("f1",)),
        PromptUpdated(),
        InjectionRefused(),
        LatencyReported(0.1, None, 0.2),
        EngineWarned("SLOW_THINK_REQUEST"),
        EngineFailed("voice failed: URLError", retryable=True),
    ],
)
def test_encoded_event_reads_back(event: EngineEvent) -> None:
    """Recordings of every engine hold Deepgram messages."""
    assert DeepgramCodec().receive(DeepgramCodec().encode(event)) == [event]


def test_times_of_words_read_back() -> None:
    event = WordsTimed((WordEnd(3, 1600), WordEnd(8, 3200)))
    assert DeepgramCodec().receive(DeepgramCodec().encode(event)) == [event]


@pytest.mark.parametrize("ends", ["null", "7", "[[1]]", '[["a", 1]]', "[1, 2]"])
def test_odd_times_of_words_are_none(ends: str) -> None:
    assert DeepgramCodec().receive(f'{{"type":"WordsTimed","ends":{ends}}}') == [WordsTimed(())]


def test_encoded_function_call_is_answered_once() -> None:
    codec = DeepgramCodec()
    codec.encode(FunctionsRequested((FunctionCall("f1", "end_call", "{}"),)))
    answer = json.loads(codec.answer_tool("f1", "ok") or b"null")
    assert answer == {"type": "FunctionCallResponse", "id": "f1", "name": "end_call", "content": "ok"}
    assert codec.answer_tool("f1", "twice") is None


@pytest.mark.parametrize(
    "listen, sent",
    [
        ({"model": "flux-general-en"}, ["Rohloff", "Ana"]),
        ({"model": "nova-3", "keyterms": ["Speedhub", "Ana"]}, ["Speedhub", "Ana", "Rohloff"]),
        ({"model": "nova-2"}, None),
    ],
)
def test_names_from_memory_are_keyterms(listen, sent):
    agent = replace(Agent("maya", ""), listen={"type": "deepgram", **listen})
    settings = AgentSettings(agent, "You are Maya.", keyterms=["Rohloff", "Ana"])
    provider = json.loads(DeepgramCodec().settings(settings))["agent"]["listen"]["provider"]
    assert provider.get("keyterms") == sent
    assert agent.listen.get("keyterms") == listen.get("keyterms")


@pytest.mark.parametrize(
    ("listen", "patience", "expected"),
    [
        ("flux-general-en", "normal", {}),
        ("flux-general-en", "short", {"eot_threshold": 0.6, "eot_timeout_ms": 3000}),
        ("flux-general-en", "long", {"eot_threshold": 0.85, "eot_timeout_ms": 8000}),
        ({"model": "flux-general-en", "eot_threshold": 0.9}, "long", {"eot_threshold": 0.9, "eot_timeout_ms": 8000}),
        (
            {"model": "flux-general-en", "eager_eot_threshold": 0.65},
            "short",
            {"eot_threshold": 0.65, "eager_eot_threshold": 0.65, "eot_timeout_ms": 3000},
        ),
        ("nova-3", "long", {}),
    ],
)
def test_patience_is_set_where_deepgram_can(listen: Any, patience: Any, expected: dict[str, Any]) -> None:
    settings = AgentSettings(Agent("maya", "", listen=listen, patience=patience), "")
    provider = json.loads(DeepgramCodec().settings(settings))["agent"]["listen"]["provider"]
    assert {key: value for key, value in provider.items() if "eot" in key} == expected
    check_listen({"provider": provider})


def test_dictation_is_waited_for_and_then_no_longer() -> None:
    listen = {"model": "flux-general-multi", "language_hints": ["de"], "eot_threshold": 0.6}
    codec = DeepgramCodec()
    assert codec.expect_dictation(True) is None
    codec.settings(AgentSettings(Agent("maya", "", listen=listen), "", keyterms=("Anna",)))
    found = []
    for expected in (True, False):
        update = json.loads(codec.expect_dictation(expected) or b"")
        check_listen(update["listen"])
        assert AgentV1UpdateListen.model_validate(update).dict() == update
        provider = update["listen"]["provider"]
        assert (provider["language_hints"], provider["keyterms"]) == (["de"], ["Anna"])
        found.append((provider["eot_threshold"], provider["eot_timeout_ms"]))
    assert found == [(0.9, 5000), (0.6, 5000)]


def test_nova_can_not_be_set_to_wait() -> None:
    codec = DeepgramCodec()
    codec.settings(AgentSettings(Agent("maya", "", listen="nova-3"), ""))
    assert codec.expect_dictation(True) is None
