import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.realtime import RealtimeServerEvent, SessionUpdateEvent
from pydantic import TypeAdapter

from gateway.agents import Agent
from gateway.audio import SILENCE_FRAME
from gateway.engines.interface import (
    AgentAudioDone,
    AgentFunction,
    AgentSaid,
    AgentSettings,
    EngineFailed,
    EngineGreeted,
    EngineWarned,
    FunctionCall,
    FunctionsRequested,
    HistoryMessage,
    HistoryToolCall,
    InjectionRefused,
    PromptUpdated,
    SettingsApplied,
    TurnEnded,
    UsageReported,
    UserSaid,
    UserStartedSpeaking,
)
from gateway.engines.realtime_codec import NOT_TRANSCRIBED, RealtimeCodec, append_audio
from gateway.engines.realtime_dialect import OPENAI, XAI, Dialect
from gateway.errors import RemoteProtocolError
from tests.fakes.realtime_checks import check_openai, check_xai, extras

MAYA = Agent("maya", "You are Maya.")
NEW_CALL = AgentSettings(MAYA, "You are Maya.", "Hello.", (AgentFunction("end_call", "Hang up."),))
RESUMED_CALL = AgentSettings(
    MAYA,
    "You are Maya.",
    history=(
        HistoryMessage("user", "Is my bike ready?"),
        HistoryToolCall(FunctionCall("f" * 60, "order_status", ""), "waiting"),
        HistoryMessage("assistant", "It will be on Friday."),
    ),
)
PCMU = {"type": "audio/pcmu"}
FORMATS = {"audio": {"input": {"format": PCMU}, "output": {"format": PCMU}}}
SOUND = bytes(range(160))


class Talk:
    """A codec, and what it wants to send."""

    def __init__(self, dialect: Dialect = OPENAI, settings: AgentSettings = NEW_CALL, *, applied: bool = True) -> None:
        self.codec = RealtimeCodec(dialect)
        self.sent: list[dict[str, Any]] = []
        self.codec.configure(settings)
        if applied:
            self.gets("session.updated", session=FORMATS)
            self.sent.clear()

    def gets(self, kind: str, **fields: Any) -> list[Any]:
        """What the server sends; the events, after what they cause was sent."""
        events = self.codec.receive(json.dumps({"type": kind, "event_id": "e", **fields}))
        self.codec.pump()
        self.flush()
        return events

    def flush(self) -> list[dict[str, Any]]:
        self.sent += [json.loads(frame) for frame in self.codec.outgoing]
        self.codec.outgoing.clear()
        return self.sent

    @property
    def kinds(self) -> list[str]:
        return [message["type"] for message in self.flush()]

    def created(self, response: str = "r1", **fields: Any) -> list[Any]:
        return self.gets("response.created", response={"id": response, "metadata": None, **fields})

    def audio(self, sound: bytes = SOUND, response: str = "r1", item: str = "a1") -> list[Any]:
        delta = base64.b64encode(sound).decode()
        return self.gets("response.output_audio.delta", response_id=response, item_id=item, delta=delta)

    def text(self, text: str, response: str = "r1") -> list[Any]:
        return self.gets("response.output_audio_transcript.delta", response_id=response, item_id="a1", delta=text)

    def done(self, response: str = "r1", status: str = "completed", **fields: Any) -> list[Any]:
        return self.gets("response.done", response={"id": response, "status": status, "output": [], **fields})

    def speaks(self, turn: str = "u1") -> list[Any]:
        return self.gets("input_audio_buffer.speech_started", item_id=turn, audio_start_ms=0)

    def stops(self, turn: str = "u1") -> list[Any]:
        return self.gets("input_audio_buffer.committed", item_id=turn)

    def transcript(self, text: str, turn: str = "u1") -> list[Any]:
        kind = "conversation.item.input_audio_transcription.completed"
        return self.gets(kind, item_id=turn, content_index=0, transcript=text)

    def greeted(self) -> "Talk":
        """The greeting is over."""
        self.created("r0", metadata={"purpose": "say"})
        self.audio(response="r0", item="a0")
        self.done("r0")
        self.flush().clear()
        return self


def test_settings_pass_the_sdk_unchanged() -> None:
    for settings in (NEW_CALL, RESUMED_CALL):
        update = Talk(settings=settings, applied=False).flush()[0]
        event = SessionUpdateEvent.model_validate(update)
        assert event.to_dict(exclude_unset=True) == update
        assert list(extras(event)) == []


def test_agent_that_is_not_interrupted_at_once_answers_when_asked() -> None:
    talk = Talk(settings=replace(NEW_CALL, agent=replace(MAYA, interrupt="words"))).greeted()
    assert talk.codec.waits_for_text
    talk.created()
    talk.audio()
    assert talk.speaks() == [UserStartedSpeaking(answer_goes_on=True)]
    assert talk.audio() == [SOUND]
    assert talk.stops() == [TurnEnded("u1")]
    talk.done()
    assert talk.transcript("Stop.") == [UserSaid("Stop.", "u1")]
    assert talk.sent == []
    talk.codec.answer()
    assert talk.kinds == ["response.create"]


@pytest.mark.parametrize(
    ("dialect", "option", "patience", "pauses", "dictation"),
    [
        (OPENAI, "semantic", "short", {"eagerness": "high"}, {"eagerness": "low"}),
        (OPENAI, "semantic", "long", {"eagerness": "low"}, {"eagerness": "low"}),
        (OPENAI, "server", "long", {"silence_duration_ms": 1000}, {"silence_duration_ms": 1500}),
        (OPENAI, {"type": "semantic_vad", "eagerness": "high"}, "long", {"eagerness": "high"}, {"eagerness": "low"}),
        (XAI, "server", "short", {"silence_duration_ms": 300}, {"silence_duration_ms": 1500}),
    ],
)
def test_patience_sets_the_pauses(dialect: Any, option: Any, patience: Any, pauses: Any, dictation: Any) -> None:
    options = {dialect.name: {"turn_detection": option}}
    talk = Talk(dialect, replace(NEW_CALL, agent=replace(MAYA, patience=patience, **options)), applied=False)
    first = talk.flush()[0]

    def detection(update: dict[str, Any]) -> dict[str, Any]:
        (check_xai if dialect is XAI else check_openai)(update)
        session = update["session"]
        found: dict[str, Any] = session.get("turn_detection") or session["audio"]["input"]["turn_detection"]
        return found

    assert pauses.items() <= detection(first).items()
    for expected, values in ((True, dictation), (False, pauses)):
        talk.codec.expect_dictation(expected)
        update = talk.flush()[-1]
        assert values.items() <= detection(update).items()
        assert detection(update).keys() == detection(first).keys()


def test_greeting_follows_the_settings() -> None:
    talk = Talk(applied=False)
    assert talk.gets("session.created", session={"id": "s1"}) == [EngineGreeted("s1")]
    assert talk.gets("session.updated", session=FORMATS) == [SettingsApplied()]
    response = talk.sent[-1]["response"]
    assert talk.sent[-1]["type"] == "response.create"
    assert response["instructions"].endswith("\n\nHello.") and response["input"] == []
    check_openai(talk.sent[-1])


def test_xai_is_given_the_greeting_verbatim() -> None:
    talk = Talk(XAI, applied=False)
    assert talk.gets("session.updated", session={}) == [SettingsApplied()]
    content = [{"type": "output_text", "text": "Hello."}]
    assert talk.sent[-1]["item"] == {"type": "force_message", "role": "assistant", "content": content}


@pytest.mark.parametrize(
    ("session", "problem"),
    [
        ({"audio": {"input": {"format": PCMU}, "output": {"format": {"type": "audio/pcm"}}}}, "output, but audio/pcm"),
        ({}, "input, but no format"),
    ],
)
def test_server_without_mu_law_is_refused(session: dict[str, Any], problem: str) -> None:
    [failed] = Talk(applied=False).gets("session.updated", session=session)
    assert failed == EngineFailed(f"it has no audio/pcmu for {problem}", retryable=False)


def test_history_comes_without_a_greeting() -> None:
    talk = Talk(settings=RESUMED_CALL, applied=False)
    talk.gets("session.updated", session=FORMATS)
    items = [message["item"] for message in talk.sent[1:]]
    assert [item["type"] for item in items] == ["message", "function_call", "function_call_output", "message"]
    assert items[1]["call_id"] == items[2]["call_id"]
    assert items[3]["content"] == [{"type": "output_text", "text": "It will be on Friday."}]
    for message in talk.sent:
        check_openai(message)


def test_unanswered_caller_is_answered_after_a_reconnect() -> None:
    """First the apology that the call says, then the answer."""
    talk = Talk(settings=replace(RESUMED_CALL, history=RESUMED_CALL.history[:1]), applied=False)
    talk.codec.receive(json.dumps({"type": "session.updated", "session": FORMATS}))
    talk.codec.say("Sorry.")
    assert talk.flush()[-1]["response"]["instructions"].endswith("Sorry.")
    talk.created("r1", metadata={"purpose": "say"})
    talk.audio()
    talk.done()
    assert "response" not in talk.sent[-1] and talk.sent[-1]["type"] == "response.create"


def test_model_that_answers_in_text_gets_the_history_as_one_message() -> None:
    talk = Talk(settings=RESUMED_CALL)
    talk.stops()
    talk.created()
    text = {"response_id": "r1", "item_id": "a1", "delta": "On"}
    assert talk.gets("response.output_text.delta", **text) == [EngineWarned("ANSWERED_IN_TEXT")]
    assert talk.gets("response.output_text.delta", **text) == []
    assert talk.kinds == ["response.cancel", *["conversation.item.delete"] * 5, "conversation.item.create"]
    packed = talk.sent[-1]["item"]["content"][0]["text"]
    assert packed.endswith("\nuser: Is my bike ready?\nassistant: It will be on Friday.")
    talk.done(status="cancelled")
    assert talk.kinds[-1] == "response.create"
    for message in talk.sent:
        check_openai(message)


# Turns


def test_plain_turn() -> None:
    talk = Talk().greeted()
    assert talk.speaks() == [UserStartedSpeaking()]
    assert talk.stops() == [TurnEnded("u1")]
    assert talk.transcript(" Is it rea\0dy? ") == [UserSaid("Is it ready?", "u1")]
    talk.created()
    assert talk.text("It is ready. ") == []  # its audio has not begun
    assert talk.audio() == [SOUND, AgentSaid("It is ready.")]
    assert talk.text("Come by") == []
    assert talk.audio() == [SOUND]
    assert talk.done() == [AgentSaid("Come by"), AgentAudioDone()]
    assert talk.sent == []


def test_text_of_a_turn_may_come_last() -> None:
    talk = Talk().greeted()
    talk.speaks()
    talk.stops()
    talk.created()
    talk.audio()
    talk.done()
    assert talk.transcript("Is it ready?") == [UserSaid("Is it ready?", "u1")]
    assert talk.transcript("Is it ready?") == []


@pytest.mark.parametrize("text", ["", NOT_TRANSCRIBED])
def test_turn_without_text_is_not_swallowed(text: str) -> None:
    talk = Talk().greeted()
    talk.stops()
    if not text:
        assert talk.transcript("") == [UserSaid("", "u1")]
        return
    kind = "conversation.item.input_audio_transcription.failed"
    warned, said = talk.gets(kind, item_id="u1", content_index=0, error={"code": "x"})
    assert (warned, said) == (EngineWarned("TRANSCRIPTION_FAILED"), UserSaid(NOT_TRANSCRIBED, "u1"))


def test_text_that_never_comes_is_given_up() -> None:
    talk = Talk().greeted()
    talk.stops()
    assert talk.codec.give_up("u1") == [UserSaid(NOT_TRANSCRIBED, "u1")]
    assert talk.codec.give_up("u1") == []
    assert talk.codec.say("Are you there?")
    assert talk.kinds == ["response.create"]


def test_xai_repeats_the_text_of_a_turn() -> None:
    talk = Talk(XAI).greeted()
    for text in ("Is my", "Is my bike ready?"):
        talk.stops()
        talk.created(f"r of {text}")  # the one before was dropped silently
        assert talk.transcript(text) == []
    response = "r of Is my bike ready?"
    assert talk.audio(response=response) == [UserSaid("Is my bike ready?", "u1"), SOUND]


def test_xai_text_is_final_at_the_end_of_the_call() -> None:
    talk = Talk(XAI).greeted()
    talk.stops()
    talk.transcript("Goodbye.")
    assert talk.codec.end_user_turn() == [UserSaid("Goodbye.", "u1")]


# Barge-in


def test_barge_in_mutes_the_answer() -> None:
    talk = Talk().greeted()
    talk.created()
    talk.audio()
    talk.text("It is a long")
    assert talk.speaks("u2") == [AgentSaid("It is a long"), UserStartedSpeaking()]
    assert talk.audio() == talk.text(" story.") == []
    assert talk.done(status="cancelled") == []
    assert talk.audio() == []  # later than its end
    assert talk.sent == []


def test_answer_is_cut_where_the_caller_stopped_listening() -> None:
    """Several items are queued: one is cut, later ones are deleted."""
    talk = Talk().greeted()
    talk.created()
    for item, frames in (("a1", 50), ("a2", 100), ("a3", 25)):
        for _ in range(frames):
            talk.audio(item=item)
    talk.done()
    talk.speaks("u2")
    talk.codec.truncate(500 + 1700)
    cut, deleted = sorted(talk.flush(), key=lambda message: message["item_id"])
    assert (cut["type"], cut["item_id"], cut["audio_end_ms"]) == ("conversation.item.truncate", "a2", 300)
    assert (deleted["type"], deleted["item_id"]) == ("conversation.item.delete", "a3")


def test_answer_that_was_heard_is_not_cut() -> None:
    talk = Talk().greeted()
    talk.created()
    talk.audio()
    talk.done()
    talk.speaks("u2")
    talk.codec.truncate(19)
    assert talk.flush() == []


def test_server_that_does_not_interrupt_is_cancelled() -> None:
    agent = replace(MAYA, openai={"turn_detection": {"type": "server_vad", "interrupt_response": False}})
    talk = Talk(settings=replace(NEW_CALL, agent=agent)).greeted()
    talk.created()
    for _ in range(10):
        talk.audio()
    talk.speaks()
    assert talk.audio() == [SOUND]
    talk.codec.truncate(120)
    assert talk.kinds == ["response.cancel", "conversation.item.truncate"]
    assert talk.audio() == []


# Saying a given text


def test_text_waits_for_the_answer() -> None:
    talk = Talk().greeted()
    talk.created()
    assert talk.codec.say("One moment.")
    assert talk.flush() == []
    talk.audio()
    talk.done()
    assert talk.sent[-1]["response"]["instructions"].endswith("One moment.")
    talk.created("r2", metadata={"purpose": "say"})
    assert talk.audio(response="r2", item="a2") == [SOUND, AgentSaid("One moment.")]
    assert talk.text("One moment, please.", "r2") == []
    assert talk.done("r2") == [AgentAudioDone()]


def test_text_waits_for_the_answer_that_the_server_is_about_to_give() -> None:
    talk = Talk().greeted()
    talk.stops()
    talk.codec.say("One moment.")
    assert talk.flush() == []


def test_text_instead_of_the_answer() -> None:
    talk = Talk().greeted()
    talk.created()
    talk.audio()
    talk.codec.say("It is forgotten.", interrupt=True)
    assert talk.kinds == ["response.cancel", "conversation.item.delete"]
    assert talk.audio() == []
    talk.done(status="cancelled")
    assert talk.sent[-1]["response"]["instructions"].endswith("It is forgotten.")


def test_answer_that_has_not_begun_is_cancelled_when_it_does() -> None:
    talk = Talk().greeted()
    talk.stops()
    talk.codec.say("It is forgotten.", interrupt=True)
    talk.created()
    assert talk.kinds == ["response.cancel"]


def test_text_is_refused_while_the_caller_speaks() -> None:
    talk = Talk().greeted()
    talk.speaks()
    assert not talk.codec.say("Are you there?")


def test_text_that_the_caller_interrupts_at_once_is_refused() -> None:
    talk = Talk().greeted()
    talk.codec.say("One moment.")
    talk.speaks()
    talk.created(metadata={"purpose": "say"})
    assert talk.kinds == ["response.create", "response.cancel"]
    assert talk.done(status="cancelled") == [InjectionRefused()]


def test_refused_request_is_made_again() -> None:
    talk = Talk().greeted()
    talk.codec.say("One moment.")
    talk.created("r9")  # the server's own
    error = {"type": "invalid_request_error", "code": "conversation_already_has_active_response", "message": "busy"}
    assert talk.gets("error", error=error) == []
    talk.done("r9")
    assert talk.kinds == ["response.create", "response.create"]


# Functions


def call_item(call_id: str, status: str = "completed", name: str = "hours") -> dict[str, Any]:
    return {"type": "function_call", "call_id": call_id, "name": name, "arguments": "{}", "status": status}


def test_parallel_functions_are_answered_once() -> None:
    talk = Talk().greeted()
    talk.created()
    for call_id in ("c1", "c2", "c2"):
        assert talk.gets("response.output_item.done", response_id="r1", item=call_item(call_id)) == []
    talk.gets("response.output_item.done", response_id="r1", item=call_item("c3", "incomplete"))
    calls = tuple(FunctionCall(call_id, "hours", "{}") for call_id in ("c1", "c2"))
    assert talk.done(output=[call_item("c1")]) == [FunctionsRequested(calls)]
    talk.codec.answer_tool("c2", "till six")
    talk.codec.answer_tool("unknown", "?")
    assert talk.kinds == ["conversation.item.create"]
    talk.codec.answer_tool("c1", "from nine")
    talk.codec.answer_tool("c1", "twice")
    assert talk.kinds == ["conversation.item.create", "conversation.item.create", "response.create"]


def test_result_is_not_answered_twice() -> None:
    """The caller spoke meanwhile, and the server's answer to that has the result."""
    talk = Talk().greeted()
    talk.created()
    talk.done(output=[call_item("c1")])
    talk.stops()
    talk.codec.answer_tool("c1", "from nine")
    talk.created("r2")
    talk.audio(response="r2", item="a2")
    talk.done("r2")
    assert talk.kinds == ["conversation.item.create"]


def test_functions_of_a_cancelled_response_do_not_run() -> None:
    talk = Talk().greeted()
    talk.created()
    talk.gets("response.output_item.done", response_id="r1", item=call_item("c1"))
    talk.speaks()
    assert talk.done(status="cancelled") == []
    [message] = talk.flush()
    assert (message["item"]["call_id"], message["item"]["output"]) == ("c1", '{"error":"cancelled"}')


# Instructions


def test_early_memory_extends_the_instructions() -> None:
    talk = Talk()
    talk.codec.update_instructions("The caller is Ana.")
    [message] = talk.flush()
    assert message["session"] == {"type": "realtime", "instructions": "You are Maya.\nThe caller is Ana."}
    assert talk.gets("session.updated", session=FORMATS) == [PromptUpdated()]


def test_later_memory_is_a_message_and_can_be_removed() -> None:
    talk = Talk().greeted()
    talk.stops()
    talk.codec.update_instructions("The caller is Ana.")
    item = talk.flush()[0]["item"]
    assert (item["role"], item["content"][0]["text"]) == ("system", "The caller is Ana.")
    assert talk.gets("conversation.item.added", item=item) == [PromptUpdated()]
    talk.codec.replace_settings(replace(NEW_CALL, prompt="You are Sam.", functions=()))
    assert [message["type"] for message in talk.flush()[1:]] == ["conversation.item.delete", "session.update"]
    assert talk.sent[-1]["session"] == {"type": "realtime", "instructions": "You are Sam.", "tools": []}
    for message in talk.sent:
        check_openai(message)


# The end of a turn


def test_silence_ends_a_turn_by_volume() -> None:
    agent = replace(MAYA, openai={"turn_detection": {"type": "server_vad", "silence_duration_ms": 200}})
    talk = Talk(settings=replace(NEW_CALL, agent=agent)).greeted()
    talk.speaks()
    talk.codec.end_user_turn()
    assert talk.codec.outgoing == [append_audio(SILENCE_FRAME)] * 30


def test_judged_turn_is_committed() -> None:
    talk = Talk().greeted()
    talk.speaks()
    talk.codec.end_user_turn()
    assert talk.kinds == ["input_audio_buffer.commit"]


# Errors and usage


def error(code: str | None, kind: str = "invalid_request_error", message: str = "") -> dict[str, Any]:
    return {"error": {"code": code, "type": kind, "message": message}}


@pytest.mark.parametrize(
    ("fields", "events"),
    [
        (error("insufficient_quota"), [EngineFailed("insufficient_quota", retryable=False)]),
        (error("new_name", "insufficient_quota"), [EngineFailed("new_name", retryable=False)]),
        (error("session_expired"), [EngineFailed("session_expired", retryable=True)]),
        (error(None, "server_error"), [EngineFailed("server_error", retryable=True)]),
        (error("response_cancel_not_active"), []),
        (error(None, message="Audio content of 9250ms is already shorter than 57340ms"), []),
        (error("cannot_update_voice"), [EngineWarned("cannot_update_voice")]),
    ],
)
def test_errors_end_a_session_or_not(fields: dict[str, Any], events: list[Any]) -> None:
    assert Talk().gets("error", **fields) == events


def test_every_error_before_the_settings_is_final() -> None:
    failed = EngineFailed("unknown_parameter session.voice", retryable=False)
    fields = {"error": {"code": "unknown_parameter", "param": "session.voice"}}
    assert Talk(applied=False).gets("error", **fields) == [failed]


def test_failed_answer_is_tried_once_more() -> None:
    talk = Talk().greeted()
    details = {"status_details": {"type": "failed", "error": {"code": "inference_rate_limit_exceeded"}}}
    talk.created()
    assert talk.done(status="failed", **details) == [EngineWarned("inference_rate_limit_exceeded")]
    talk.codec.answer()
    assert talk.kinds == ["response.create"]
    talk.created("r2")
    assert talk.done("r2", "failed", **details) == [EngineFailed("inference_rate_limit_exceeded", retryable=True)]


def test_usage_is_reported_by_kind() -> None:
    talk = Talk().greeted()
    talk.created()
    usage = {
        "input_tokens": 900,
        "output_tokens": 70,
        "input_token_details": {
            "text_tokens": 700,
            "audio_tokens": 200,
            "cached_tokens": 640,
            "cached_tokens_details": {"text_tokens": 600, "audio_tokens": 40},
        },
        "output_token_details": {"text_tokens": 20, "audio_tokens": 50},
    }
    counted = {
        "input_tokens": 900,
        "output_tokens": 70,
        "cached_tokens": 640,
        "input_audio_tokens": 200,
        "output_audio_tokens": 50,
        "cached_audio_tokens": 40,
    }
    assert talk.done(usage=usage) == [UsageReported(counted)]


# The wire


def test_beta_names_are_read() -> None:
    talk = Talk().greeted()
    talk.created()
    delta = base64.b64encode(SOUND).decode()
    assert talk.gets("response.audio.delta", response_id="r1", item_id="a1", delta=delta) == [SOUND]
    assert talk.gets("response.audio_transcript.delta", response_id="r1", item_id="a1", delta="Hi. ") == [
        AgentSaid("Hi.")
    ]


def test_server_that_announces_nothing_is_followed() -> None:
    talk = Talk().greeted()
    assert talk.audio(response="r7") == [SOUND]
    assert talk.done("r7") == [AgentAudioDone()]


def test_server_that_returns_no_metadata_is_followed() -> None:
    """The greeting is ours, the answer after a turn is not."""
    talk = Talk()
    talk.created("r0")
    assert talk.audio(response="r0") == [SOUND, AgentSaid("Hello.")]
    talk.done("r0")
    talk.stops()
    talk.created()
    assert talk.audio() == [SOUND]
    assert talk.text("It is. ") == [AgentSaid("It is.")]


def test_server_that_does_not_report_the_end_of_a_turn_is_followed() -> None:
    talk = Talk().greeted()
    talk.speaks()
    assert talk.transcript("Is it ready?") == [TurnEnded("u1"), UserSaid("Is it ready?", "u1")]
    assert talk.transcript("Is it ready?") == []
    assert not talk.codec.caller_speaks


def test_appended_audio_is_json() -> None:
    for audio in (SOUND, SILENCE_FRAME, b""):
        event = json.loads(append_audio(audio))
        assert (event["type"], base64.b64decode(event["audio"])) == ("input_audio_buffer.append", audio)


def sdk_event_types() -> set[str]:
    schema = TypeAdapter(RealtimeServerEvent).json_schema()
    return {model["properties"]["type"]["const"] for model in schema["$defs"].values() if _is_event(model)}


def _is_event(model: dict[str, Any]) -> bool:
    properties = model.get("properties", {})
    return "event_id" in properties and "const" in properties.get("type", {})


def test_every_event_of_the_sdk_is_known() -> None:
    talk = Talk()
    types = sdk_event_types()
    assert {"session.created", "response.output_audio.delta", "error", "response.done"} <= types
    for kind in sorted(types):
        talk.codec.receive(json.dumps({"type": kind}))
    assert talk.codec.unknown_types == set()
    talk.codec.receive(b'{"type": "session.something_new"}')
    assert talk.codec.unknown_types == {"session.something_new"}


@pytest.mark.parametrize("text", ["hello", "[]", "{}", '{"type": 5}', b"\xff"])
def test_text_without_a_type_is_blamed(text: str) -> None:
    with pytest.raises(RemoteProtocolError):
        Talk().codec.receive(text)


KINDS = (
    "response.created response.done response.output_audio.delta response.output_audio_transcript.delta error "
    "response.output_item.done input_audio_buffer.committed input_audio_buffer.speech_started session.updated "
    "conversation.item.added conversation.item.input_audio_transcription.completed"
).split()
NAMES = "response response_id item item_id delta session error transcript usage status output audio metadata".split()
VALUES = st.none() | st.integers() | st.text(max_size=5) | st.lists(st.none()) | st.dictionaries(st.text(), st.none())


@given(st.lists(st.tuples(st.sampled_from(KINDS), st.dictionaries(st.sampled_from(NAMES), VALUES)), max_size=12))
def test_odd_fields_never_break_it(messages: list[tuple[str, dict[str, Any]]]) -> None:
    codec = Talk().codec
    for kind, fields in messages:
        try:
            codec.receive(json.dumps({**fields, "type": kind}))
        except RemoteProtocolError as problem:
            assert problem.problem == "sent audio that is not base64"
        codec.pump()
