import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.trace import SpanKind, StatusCode

from gateway.history.traces import CallTracer, TracedModel, traced
from gateway.settings import load
from tests.fakes.collector import FakeCollector
from tests.stage import make_carrier, staged, until


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


# Spans from events

MODEL = TracedModel("anthropic", "claude-haiku-5-5")
SESSION = "voice-session:1"


@pytest.fixture
def spans() -> Iterator[Callable[..., list[Any]]]:
    """Record events of one call; returns its finished spans, by name."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = CallTracer(provider.get_tracer("test"), {"maya": MODEL})

    def record(*events: dict[str, Any]) -> list[Any]:
        answered = {"event": "answered", "agent": "maya", "carrier": "twilio", "attempt": 1}
        hangup = {"event": "hangup", "reason": "caller hung up", "turns": 2}
        for event in (answered, *events, hangup):
            tracer.record({"session": SESSION, **event})
        return list(exporter.get_finished_spans())

    yield record
    provider.shutdown()


STAGES = {"transcript": 0.2, "llm_request": 0.3, "first_token": 0.6, "first_audio": 0.8, "first_frame": 0.81}


def test_names_are_those_of_the_conventions(spans: Any) -> None:
    memory = {"event": "memory", "facts": 2, "calls": 1, "outcome": "loaded", "seconds": 0.1}
    found = spans(
        memory,
        {"event": "turn", "stages": STAGES},
        {"event": "function_called", "function": "book"},
        {"event": "function_finished", "function": "book", "ok": True, "seconds": 0.1},
    )
    names = {span.name: span for span in found}
    assert set(names) == {
        "search_memory",
        "turn",
        "transcribe",
        "chat claude-haiku-5-5",
        "synthesize",
        "send",
        "execute_tool book",
        "invoke_agent maya",
    }
    chat = names["chat claude-haiku-5-5"]
    assert dict(chat.attributes) == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-haiku-5-5",
    }
    assert chat.kind is SpanKind.CLIENT
    assert dict(names["execute_tool book"].attributes) == {
        "gen_ai.operation.name": "execute_tool",
        "gen_ai.tool.name": "book",
        "gen_ai.tool.type": "function",
    }
    assert names["search_memory"].attributes["gen_ai.memory.record.count"] == 3
    assert not names["transcribe"].attributes
    assert all(span.status.status_code is StatusCode.UNSET for span in found)


def test_attributes_are_published_ones(spans: Any) -> None:
    """Of the namespace `gen_ai`; those of memory are newer than the package."""
    found = spans(
        {"event": "turn", "stages": STAGES},
        {"event": "function_finished", "function": "book", "ok": True, "seconds": 0},
    )
    published = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_")}
    used = {name for span in found for name in span.attributes if name.startswith("gen_ai.")}
    assert used <= published
    operations = {one.value for one in gen_ai_attributes.GenAiOperationNameValues}
    assert {span.attributes.get("gen_ai.operation.name") for span in found} <= operations | {None}


def test_failures_are_errors(spans: Any) -> None:
    found = spans(
        {"event": "memory", "facts": 0, "calls": 0, "outcome": "failed", "seconds": 1.0},
        {"event": "function_finished", "function": "book", "ok": False, "seconds": 0.1},
        {"event": "step", "step": "document", "state": "refused", "reason": "no"},
        {"event": "step", "step": "facts", "state": "waits", "reason": "away"},
        {"event": "hangup", "reason": "voice engine lost", "turns": 2},
    )
    failed = {span.name: span.attributes["error.type"] for span in found if span.status.status_code is StatusCode.ERROR}
    assert failed == {
        "search_memory": "memory_failed",
        "execute_tool book": "tool_failed",
        "upsert_memory": "refused",
        "invoke_agent maya": "voice engine lost",
    }


def test_what_did_not_run_has_no_span(spans: Any) -> None:
    found = spans(
        {"event": "memory", "facts": 0, "calls": 0, "outcome": "off", "seconds": None},
        {"event": "step", "step": "remote document", "state": "done", "ran": False},
    )
    assert [span.name for span in found] == ["invoke_agent maya"]


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
        async with traced(load({}, tmp_path), {}) as tracer:
            assert tracer is not None
            tracer.record({"event": "answered", "session": SESSION, "agent": "maya", "carrier": "twilio", "attempt": 1})
            tracer.record({"event": "hangup", "session": SESSION, "reason": "caller hung up", "turns": 0})
    assert [span.name for span in collector.spans] == ["invoke_agent maya"]
    assert collector.headers["x-tenant"] == "blue"
    assert collector.resource["service.name"] == "switchboard"
    assert collector.resource["deployment.environment.name"] == "test"
    assert not [name for name in os.environ if name.startswith("OTEL_")]


async def test_dead_collector_disturbs_nobody(tmp_path: Path) -> None:
    async with staged(tmp_path, make_carrier("telnyx"), OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:1") as stage:
        call, conversation = await stage.dial()
        await conversation.user_says("Hello.")
        await call.hang_up()
        await stage.document()
