import os
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from gateway.errors import SettingsError
from gateway.history.traces import CallTracer, check, traced
from gateway.settings import load
from tests.fakes.collector import FakeCollector
from tests.fakes.llm import FakeLlm
from tests.fakes.openai_realtime import FakeRealtime
from tests.stage import make_carrier, staged, until

STATUS_ERROR = 2  # of OTLP


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


async def test_call_is_a_trace(tmp_path: Path) -> None:
    """Conversation, turn, stage; memory beside them. Sent while the gateway runs, without a word or a number."""
    async with FakeCollector().running() as collector:
        async with staged(tmp_path, make_carrier("twilio"), OTEL_EXPORTER_OTLP_ENDPOINT=collector.url) as stage:
            call, conversation = await stage.dial()
            await stage.played(call, conversation)
            await conversation.user_says("Xylophone.")
            await stage.answer(call, conversation, "It is.")
            await call.hang_up()
            await stage.document()
            await until(lambda: collector.named("upsert_memory"))
    [root] = collector.named("invoke_agent maya")
    told = attributes(root)
    assert (told["gen_ai.operation.name"], told["gen_ai.agent.name"]) == ("invoke_agent", "maya")
    assert told["voice.end_reason"] == "caller hung up"
    assert told["gen_ai.conversation.id"].startswith("voice-session:")
    assert (told["gen_ai.provider.name"], told["gen_ai.request.model"]) == ("openai", "gpt-5.4-mini")
    kinds = [attributes(span)["voice.memory.kind"] for span in collector.named("upsert_memory")]
    assert kinds == ["document"]  # neither facts nor state, and no remote store
    [memory] = collector.named("search_memory")
    assert attributes(memory)["voice.memory.outcome"] == "nothing"
    [turn] = collector.named("turn")
    assert memory.parent_span_id == turn.parent_span_id == root.span_id
    [send] = collector.named("send")
    assert send.parent_span_id == turn.span_id
    assert turn.start_time_unix_nano <= send.start_time_unix_nano <= send.end_time_unix_nano
    assert {span.trace_id for span in collector.spans} == {root.trace_id}
    assert not any(word in body for body in collector.bodies for word in (b"Xylophone", b"2025550143"))


async def test_realtime_engine_answers_with_its_own_model(tmp_path: Path) -> None:
    engine = FakeRealtime("xai-test-key", is_xai=True)
    async with FakeCollector().running() as collector:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        async with staged(tmp_path, make_carrier("twilio"), engine=engine, **environ) as stage:
            call, _ = await stage.dial()
            await call.hang_up()
            await until(lambda: collector.named("invoke_agent maya"))
    root = attributes(collector.named("invoke_agent maya")[0])
    assert (root["gen_ai.provider.name"], root["gen_ai.request.model"]) == ("x_ai", "grok-voice-latest")


async def test_each_asked_model_has_a_chat_span(tmp_path: Path) -> None:
    """The first one fails, the second one answers."""
    async with FakeCollector().running() as collector, FakeLlm() as failing, FakeLlm() as answering:
        failing.fails(500)
        answering.answers("It is ready.")
        entries = ", ".join(
            f'{{ url = "{llm.url}/v1", model = "m-{number}", api_key = "test-key", name = "llm-{number}" }}'
            for number, llm in enumerate((failing, answering), 1)
        )
        (tmp_path / "maya.md").write_text("You are Maya.")
        (tmp_path / "gateway.toml").write_text(f'[agents.maya]\nprompt = "maya.md"\nbrain = [{entries}]\n')
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url}
        async with staged(tmp_path, make_carrier("twilio"), **environ) as stage:
            call, conversation = await stage.dial()
            await stage.played(call, conversation)
            await conversation.user_says("Is it ready?")
            await stage.played(call, conversation)
            await call.hang_up()
            await stage.document()
    [failed], [chat] = collector.named("chat m-1"), collector.named("chat m-2")
    assert (attributes(failed)["gen_ai.provider.name"], attributes(chat)["gen_ai.provider.name"]) == ("llm-1", "llm-2")
    assert (attributes(failed)["error.type"], failed.status.code) == ("500", STATUS_ERROR)
    assert "error.type" not in attributes(chat)
    [turn] = collector.named("turn")
    assert failed.parent_span_id == chat.parent_span_id == turn.span_id
    assert "gen_ai.response.time_to_first_chunk" in attributes(chat)
    assert len([span for span in collector.spans if span.name.startswith("chat")]) == 2


# Spans from events

SESSION = "voice-session:1"
SECOND = 1_000_000_000


@pytest.fixture
def spans() -> Iterator[Callable[..., list[Any]]]:
    """Record events of one call; returns its finished spans. Each event happens at its `t`, in seconds of the call."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    now = 0
    tracer = CallTracer(provider.get_tracer("test"), lambda: now)

    def record(*events: dict[str, Any], t: float = 60.0) -> list[Any]:
        nonlocal now
        model = {"provider": "anthropic", "model": "claude-haiku-5-5"}
        answered = {"event": "answered", "agent": "maya", "version": "5f2c", "carrier": "twilio", "attempt": 1}
        answered |= {**model, "t": 0}
        hangup = {"event": "hangup", "reason": "caller hung up", "turns": 2, "t": t}
        for event in (answered, *events, *([] if any(one["event"] == "hangup" for one in events) else [hangup])):
            now = int(event.get("t", now / SECOND) * SECOND)
            tracer.record({"session": SESSION, **event})
        return list(exporter.get_finished_spans())

    yield record
    provider.shutdown()


def stretch(span: Any) -> tuple[float, float]:
    """Its start and end in seconds of the call."""
    return round(span.start_time / SECOND, 3), round(span.end_time / SECOND, 3)


def attempt(t: float, seconds: float, **more: Any) -> dict[str, Any]:
    about = {"provider": "anthropic", "model": "claude-haiku-5-5", "outcome": "answered", "error": ""}
    return {"event": "model_finished", "t": t, "seconds": seconds, "first_token": 0.2, **about, **more}


def finished(function: str = "book", **more: Any) -> dict[str, Any]:
    about = {"function": function, "tool_call": "call_1", "ok": True, "seconds": 0.1}
    return {"event": "function_finished", **about, **more}


STAGES = {
    "speech_ended": 0.1,
    "transcript": 0.2,
    "llm_request": 0.3,
    "first_token": 0.6,
    "first_audio": 0.8,
    "first_frame": 0.81,
}
TURN = {"event": "turn", "speaker": "agent", "latency": 0.81, "counted_from": "voice", "stages": STAGES}
OWN = {"provider": "open_ai", "model": "gpt-5.4-mini"}
"""Of the engine."""
CALLER = {"event": "turn", "speaker": "caller"}
TOKENS = {"input_tokens": 900, "output_tokens": 12, "cached_tokens": 800}


@pytest.mark.parametrize("event", ["turn", "answer_started"])
def test_names_are_those_of_the_conventions(spans: Any, event: str) -> None:
    memory = {"event": "memory", "facts": 2, "calls": 1, "outcome": "loaded", "seconds": 0.1}
    found = spans(memory, TURN | OWN | {"event": event}, {"event": "function_called", "function": "book"}, finished())
    names = {span.name: span for span in found}
    assert set(names) == {
        "search_memory",
        "turn",
        "detect_end_of_turn",
        "transcribe",
        "chat gpt-5.4-mini",
        "synthesize",
        "send",
        "execute_tool book",
        "invoke_agent maya",
    }
    chat = names["chat gpt-5.4-mini"]
    assert dict(chat.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "openai",
        "gen_ai.request.model": "gpt-5.4-mini",
        "gen_ai.conversation.id": SESSION,
        "gen_ai.response.time_to_first_chunk": pytest.approx(0.3),
    }
    assert chat.kind is SpanKind.CLIENT
    assert dict(names["execute_tool book"].attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "book",
        "gen_ai.tool.type": "function",
        "gen_ai.tool.call.id": "call_1",
    }
    assert names["search_memory"].attributes["gen_ai.memory.record.count"] == 3
    assert names["invoke_agent maya"].attributes["gen_ai.agent.version"] == "5f2c"
    assert not names["transcribe"].attributes
    assert all(span.status.status_code is StatusCode.UNSET for span in found)


MEMORY_OPERATIONS = {"search_memory", "upsert_memory"}
MEMORY_ATTRIBUTES = {"gen_ai.memory.record.count"}
"""Published by open-telemetry/semantic-conventions-genai; newer than the package."""


def test_attributes_are_published_ones(spans: Any) -> None:
    """Of the namespace `gen_ai`."""
    found = spans(
        {"event": "memory", "facts": 2, "calls": 1, "outcome": "loaded", "seconds": 0.1},
        TURN | OWN,
        attempt(2.0, 0.5, outcome="cancelled"),
        attempt(3.0, 0.5, **TOKENS),
        finished(),
        {"event": "step", "step": "document", "state": "done", "seconds": 0.1},
    )
    published = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {name for span in found for name in span.attributes if name.startswith("gen_ai.")}
    assert MEMORY_ATTRIBUTES < used <= published | MEMORY_ATTRIBUTES
    operations = {one.value for one in gen_ai_attributes.GenAiOperationNameValues}
    named = {span.attributes.get("gen_ai.operation.name") for span in found} - {None}
    assert MEMORY_OPERATIONS < named <= operations | MEMORY_OPERATIONS


def test_failures_are_errors(spans: Any) -> None:
    found = spans(
        {"event": "memory", "facts": 0, "calls": 0, "outcome": "failed", "seconds": 1.0},
        attempt(2.0, 0.5, outcome="failed", error="timeout", first_token=None),
        finished(ok=False),
        {"event": "step", "step": "document", "state": "refused", "reason": "no", "seconds": 0.1},
        {"event": "step", "step": "facts", "state": "waits", "reason": "away", "seconds": 0.1},
        {"event": "hangup", "reason": "voice engine lost", "turns": 2},
    )
    failed = {span.name: span.attributes["error.type"] for span in found if span.status.status_code is StatusCode.ERROR}
    assert failed == {
        "search_memory": "memory_failed",
        "chat claude-haiku-5-5": "timeout",
        "execute_tool book": "tool_failed",
        "upsert_memory": "refused",
        "invoke_agent maya": "voice engine lost",
    }


def test_what_did_not_run_has_no_span(spans: Any) -> None:
    """The stages of a turn are no `chat` span where the agent's own language model answers: its requests are."""
    found = spans(
        {"event": "memory", "facts": 0, "calls": 0, "outcome": "off", "seconds": None},
        {**TURN, "stages": {"llm_request": 0.1, "first_token": 0.2}},
        {"event": "step", "step": "remote document", "state": "done", "ran": False, "seconds": 0.1},
    )
    assert [span.name for span in found] == ["turn", "invoke_agent maya"]


# Language models


def named(spans: list[Any], name: str) -> list[Any]:
    return [span for span in spans if span.name.startswith(name)]


@pytest.mark.parametrize(("ours", "theirs"), [("azure", "azure.ai.openai"), ("openai", "openai"), ("xai", "x_ai")])
def test_providers_have_the_names_of_the_conventions(spans: Any, ours: str, theirs: str) -> None:
    [chat] = named(spans({**CALLER, "t": 10.2}, TURN | OWN | {"t": 10.81, "provider": ours}), "chat")
    assert chat.attributes["gen_ai.provider.name"] == theirs


def test_chat_of_engine_lasts_until_its_last_text(spans: Any) -> None:
    found = spans(
        {**CALLER, "t": 10.2},
        TURN | OWN | {"t": 10.81},
        {"event": "turn", "speaker": "agent", "t": 12.5},
        {"event": "turn", "speaker": "agent", "by_operator": True, "t": 13},
        {**CALLER, "t": 14},
    )
    [chat], [turn] = named(found, "chat"), named(found, "turn")
    assert stretch(chat) == (10.3, 12.5)
    assert chat.parent.span_id == turn.context.span_id


def test_chat_lasts_until_the_answer_is_complete(spans: Any) -> None:
    """Each request of a turn is in its turn, whether it ended before the first audio or after it."""
    found = spans(
        {**CALLER, "t": 10.2},
        attempt(10.5, 0.2, provider="xai", outcome="failed", error="429", first_token=None),
        TURN | {"t": 10.81},
        attempt(12.0, 1.5, **TOKENS),
        attempt(13.0, 0.5),  # with the result of a function
    )
    [turn], chats = named(found, "turn"), named(found, "chat")
    assert {chat.parent.span_id for chat in chats} == {turn.context.span_id}
    assert [stretch(chat) for chat in chats] == [(10.3, 10.5), (10.5, 12.0), (12.5, 13.0)]
    failed, answered, later = chats
    assert (failed.attributes["gen_ai.provider.name"], failed.attributes["error.type"]) == ("x_ai", "429")
    assert failed.status.status_code is StatusCode.ERROR
    assert "gen_ai.response.time_to_first_chunk" not in failed.attributes
    assert answered.attributes["gen_ai.response.time_to_first_chunk"] == 0.2
    assert answered.attributes["gen_ai.conversation.id"] == SESSION
    usage = {name: tokens for name, tokens in answered.attributes.items() if name.startswith("gen_ai.usage.")}
    assert usage == {
        "gen_ai.usage.input_tokens": 900,
        "gen_ai.usage.output_tokens": 12,
        "gen_ai.usage.cache_read.input_tokens": 800,
    }
    assert not [name for name in later.attributes if "usage" in name]  # it was not reported
    assert answered.kind is SpanKind.CLIENT


def test_request_of_next_turn_is_in_that_turn(spans: Any) -> None:
    """Also one that was sent while the caller still spoke."""
    found = spans(
        {**CALLER, "t": 10.2},
        TURN | {"t": 10.81},
        {**CALLER, "t": 20.2},
        attempt(20.6, 0.5),
        TURN | {"t": 20.81},
    )
    [chat], [_, second] = named(found, "chat"), named(found, "turn")
    assert chat.parent.span_id == second.context.span_id


def test_request_without_an_answer_is_in_the_call(spans: Any) -> None:
    """Of the greeting, and those that were cancelled since the caller went on speaking or hung up."""
    cancelled = {"outcome": "cancelled", "first_token": None}
    found = spans(
        attempt(1.0, 0.5),
        {**CALLER, "t": 10.2},
        attempt(10.5, 0.2, **cancelled),
        {**CALLER, "t": 15.2},
        TURN | {"t": 15.81},
        {**CALLER, "t": 20.2},
        attempt(20.5, 0.2, **cancelled),
    )
    root, chats = found[-1], named(found, "chat")
    assert {chat.parent.span_id for chat in chats} == {root.context.span_id}
    assert [chat.attributes.get("voice.cancelled", False) for chat in chats] == [False, True, True]
    assert all(chat.status.status_code is StatusCode.UNSET for chat in chats)


# Functions and memory


def test_parallel_calls_of_one_function_have_own_starts(spans: Any) -> None:
    found = spans(
        {"event": "function_called", "function": "book", "tool_call": "call_1", "t": 1.0},
        {"event": "function_called", "function": "book", "tool_call": "call_2", "t": 2.0},
        finished(tool_call="call_1", seconds=3.0, t=4.0),
        finished(tool_call="call_2", seconds=3.0, t=5.0),
    )
    tools = named(found, "execute_tool")
    assert [stretch(span) for span in tools] == [(1.0, 4.0), (2.0, 5.0)]
    assert [span.attributes["gen_ai.tool.call.id"] for span in tools] == ["call_1", "call_2"]


def test_memory_is_written_when_its_step_runs(spans: Any) -> None:
    """Not since the call ended. The remote store is another service."""
    found = spans(
        {"event": "hangup", "reason": "caller hung up", "turns": 2, "t": 60},
        {"event": "step", "step": "document", "state": "done", "seconds": 0.5, "t": 63},
        {"event": "step", "step": "remote document", "state": "done", "seconds": 0.25, "t": 64},
    )
    own, remote = named(found, "upsert_memory")
    assert "gen_ai.provider.name" not in own.attributes  # which is for external services
    assert [stretch(own), stretch(remote)] == [(62.5, 63.0), (63.75, 64.0)]
    assert (own.kind, remote.kind) == (SpanKind.INTERNAL, SpanKind.CLIENT)
    assert remote.attributes["gen_ai.provider.name"] == "remem"


async def test_standard_variables_are_honoured(tmp_path: Path) -> None:
    """Also those of .env: none of them is in the environment of the process."""
    async with FakeCollector().running() as collector:
        variables = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": f"{collector.url}/v1/traces",
            "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=blue",
            "OTEL_SERVICE_NAME": "switchboard",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test",
        }
        (tmp_path / ".env").write_text("".join(f"{name}={value}\n" for name, value in variables.items()))
        async with traced(load({}, tmp_path)) as tracer:
            assert tracer is not None
            about = {"session": SESSION, "agent": "maya", "carrier": "twilio", **OWN}
            tracer.record({"event": "answered", **about, "attempt": 1})
            tracer.record({"event": "hangup", "session": SESSION, "reason": "caller hung up", "turns": 0})
    assert [span.name for span in collector.spans] == ["invoke_agent maya"]
    assert collector.headers["x-tenant"] == "blue"
    assert collector.resource["service.name"] == "switchboard"
    assert collector.resource["service.version"] == metadata.version("voice-gateway")
    assert collector.resource["deployment.environment.name"] == "test"
    assert not [name for name in os.environ if name.startswith("OTEL_")]


COLLECTOR = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4317"}


@pytest.mark.parametrize("off", [{"OTEL_TRACES_EXPORTER": "none"}, {"OTEL_SDK_DISABLED": "TRUE"}])
async def test_traces_may_be_switched_off(tmp_path: Path, off: dict[str, str]) -> None:
    settings = load({**COLLECTOR, **off, "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, tmp_path)
    check(settings)
    async with traced(settings) as tracer:
        assert tracer is None


async def test_sampler_is_honoured(tmp_path: Path) -> None:
    async with FakeCollector().running() as collector:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_TRACES_SAMPLER": "always_off"}
        async with traced(load(environ, tmp_path)) as tracer:
            assert tracer is not None
            about = {"session": SESSION, "agent": "maya", "carrier": "twilio", **OWN}
            tracer.record({"event": "answered", **about, "attempt": 1})
            tracer.record({"event": "hangup", "session": SESSION, "reason": "caller hung up", "turns": 0})
    assert collector.spans == []


HTTP_PORT = "name the collector's HTTP port in OTEL_EXPORTER_OTLP_ENDPOINT, such as http://127.0.0.1:4318"


@pytest.mark.parametrize(
    ("variable", "value", "problem"),
    [
        (name, value, f"is {value!r}, but traces are sent by http/protobuf; remove it, and {HTTP_PORT}")
        for name in ("OTEL_EXPORTER_OTLP_PROTOCOL", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
        for value in ("grpc", "http/json")
    ]
    + [("OTEL_TRACES_EXPORTER", "zipkin", "is 'zipkin'; use otlp, or none for no traces")]
    + [
        (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "127.0.0.1:4318/v1/traces",
            "is '127.0.0.1:4318/v1/traces'; write it like http://127.0.0.1:4318/v1/traces",
        )
    ],
)
def test_what_cannot_be_exported_is_refused(tmp_path: Path, variable: str, value: str, problem: str) -> None:
    with pytest.raises(SettingsError) as raised:
        check(load({**COLLECTOR, variable: value}, tmp_path))
    assert str(raised.value) == f"{variable} {problem}"


def test_protocol_in_use_may_be_named(tmp_path: Path) -> None:
    check(load({**COLLECTOR, "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_TRACES_EXPORTER": "otlp"}, tmp_path))


async def test_dead_collector_disturbs_nobody(tmp_path: Path) -> None:
    async with staged(tmp_path, make_carrier("telnyx"), OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1") as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("Hello.")
        await call.hang_up()
        await stage.document()
