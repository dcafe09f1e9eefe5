"""
OpenTelemetry traces of calls: a span per conversation and turn, with spans for stages, memory and functions below.

Built from live events, so that calls contain no tracing code. Names and attributes follow OpenTelemetry's conventions
for generative AI: `invoke_agent AGENT`, `chat MODEL`, `execute_tool NAME`, `search_memory`, `upsert_memory`; what these
do not define is under `voice.`. No span contains words or phone numbers.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from gateway import extras
from gateway.agents import Agent
from gateway.llm.agent_llm import AgentLlm
from gateway.session import EndReason
from gateway.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

SERVICE: Final = "voice-gateway"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
FLUSH_MS: Final = 5000
MAX_CALLS: Final = 10_000
"""Unfinished calls that are traced; beyond it the oldest is dropped."""

_NS: Final = 1_000_000_000
_STAGES: Final = {
    "transcribe": ("speech_ended", "transcript"),
    "chat": ("llm_request", "first_token"),
    "synthesize": ("first_token", "first_audio"),
    "send": ("first_audio", "first_frame"),
}
"""Each with the stages at its start and end."""
_OPERATIONS: Final = ("chat", "execute_tool", "search_memory", "upsert_memory")
_MEMORY_STEPS: Final = ("facts", "state", "document", "remote document")
_FAILED: Final = {
    EndReason.STREAM_LOST,
    EndReason.ENGINE_LOST,
    EndReason.ENGINE_REFUSED,
    EndReason.MEDIA_SILENT,
    EndReason.CARRIER_STALLED,
    EndReason.GATEWAY_DIED,
    EndReason.FAILED,
}
_PROVIDERS: Final = {"xai": "x_ai", "open_ai": "openai", "google": "gcp.gemini", "aws_bedrock": "aws.bedrock"}
"""The conventions' names of providers, where they differ from ours or Deepgram's."""


@dataclass(frozen=True)
class TracedModel:
    """The language model that answers for an agent; "" for what is not known."""

    provider: str
    model: str

    @property
    def attributes(self) -> dict[str, str]:
        return {"gen_ai.provider.name": self.provider, **({"gen_ai.request.model": self.model} if self.model else {})}


def traced_models(agents: Iterable[Agent], llms: Mapping[str, AgentLlm]) -> dict[str, TracedModel]:
    """By agent: its own model, or the one that the engine is asked to use."""

    def model_of(agent: Agent) -> TracedModel:
        if llm := llms.get(agent.name):
            return TracedModel(_PROVIDERS.get(llm.upstreams[0].name, llm.upstreams[0].name), llm.upstreams[0].model)
        match agent.think:
            case {"type": str(kind), "model": str(model)}:
                return TracedModel(_PROVIDERS.get(kind, kind), model)
        return TracedModel("voice engine", "")

    return {agent.name: model_of(agent) for agent in agents}


@dataclass
class _Traced:
    """One call: its span, its language model, when it ended, and functions that have not returned yet."""

    span: "Span"
    model: TracedModel
    ended_at: int = 0
    functions: dict[str, int] = field(default_factory=dict)


class CallTracer:
    """Turns events into spans. The exporter runs on a thread of its own."""

    def __init__(
        self, tracer: "Tracer", models: Mapping[str, TracedModel], clock: Callable[[], int] = time.time_ns
    ) -> None:
        self._tracer = tracer
        self._models = models
        self._clock = clock
        self._calls: dict[str, _Traced] = {}

    def record(self, event: Mapping[str, Any]) -> None:
        now, kind, session = self._clock(), event["event"], event["session"]
        if kind == "answered":
            self._begin(event, now)
            return
        call = self._calls.get(session)
        if call is None:
            return
        match kind:
            case "memory" if event["outcome"] != "off":
                self._memory(call, event, now)
            case "turn" if event.get("stages"):
                self._turn(call, event["stages"], now)
            case "interruption":
                call.span.add_event("interruption", timestamp=now)
            case "function_called":
                call.functions[event["function"]] = now
            case "function_finished":
                begin = call.functions.pop(event["function"], now - int(event["seconds"] * _NS))
                attributes = {"gen_ai.tool.name": event["function"], "gen_ai.tool.type": "function"}
                span = self._span(call.span, f"execute_tool {event['function']}", begin, attributes)
                _end(span, now, "" if event["ok"] else "tool_failed")
            case "engine_lost" | "engine_back" | "media_lost" | "error":
                call.span.add_event(kind, {"what": str(event.get("what", ""))}, timestamp=now)
            case "hangup":
                call.ended_at = now
                call.span.set_attribute("voice.end_reason", event["reason"])
                call.span.set_attribute("voice.turns", event["turns"])
                _end(call.span, now, event["reason"] if event["reason"] in _FAILED else "")
            case "step" if event["step"] in _MEMORY_STEPS and event["state"] != "waits" and event.get("ran", True):
                attributes = {"gen_ai.provider.name": SERVICE, "voice.memory.kind": event["step"]}
                span = self._span(call.span, "upsert_memory", call.ended_at or now, attributes)
                _end(span, now, "" if event["state"] == "done" else event["state"])
            case "finished":
                del self._calls[session]

    def _begin(self, event: Mapping[str, Any], now: int) -> None:
        if before := self._calls.pop(event["session"], None):  # resumed with a new media stream
            before.span.end(now)
        elif len(self._calls) >= MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        model = self._models.get(event["agent"], TracedModel("voice engine", ""))
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            **model.attributes,
            "gen_ai.agent.name": event["agent"],
            "gen_ai.conversation.id": event["session"],
            "voice.carrier": event["carrier"],
            "voice.attempt": event["attempt"],
        }
        span = self._tracer.start_span(f"invoke_agent {event['agent']}", start_time=now, attributes=attributes)
        self._calls[event["session"]] = _Traced(span, model)

    def _turn(self, call: _Traced, stages: Mapping[str, float | None], now: int) -> None:
        """`stages` are seconds from the end of the caller's speech; the last one is now."""
        at = {"speech_ended": 0.0, **{stage: seconds for stage, seconds in stages.items() if seconds is not None}}
        zero = now - int(at.get("first_frame", 0.0) * _NS)
        turn = self._span(call.span, "turn", zero + int(min(at.values()) * _NS), {})
        for name, (first, last) in _STAGES.items():
            if first in at and last in at:
                begin = zero + int(at[first] * _NS)
                is_chat = name == "chat"
                named = f"chat {call.model.model}".strip() if is_chat else name
                span = self._span(turn, named, begin, call.model.attributes if is_chat else {})
                span.end(max(begin, zero + int(at[last] * _NS)))
        turn.end(now)

    def _memory(self, call: _Traced, event: Mapping[str, Any], now: int) -> None:
        attributes = {
            "gen_ai.provider.name": SERVICE,
            "gen_ai.memory.record.count": event["facts"] + event["calls"],
            "voice.memory.facts": event["facts"],
            "voice.memory.calls": event["calls"],
            "voice.memory.outcome": event["outcome"],
        }
        span = self._span(call.span, "search_memory", now - int((event["seconds"] or 0.0) * _NS), attributes)
        _end(span, now, "memory_failed" if event["outcome"] == "failed" else "")

    def _span(self, parent: "Span", name: str, begin: int, attributes: Mapping[str, Any]) -> "Span":
        """Spans of the conventions have names that begin with the operation; the others have no attribute for it."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        operation = name.partition(" ")[0]
        known = {"gen_ai.operation.name": operation} if operation in _OPERATIONS else {}
        return self._tracer.start_span(
            name,
            context=set_span_in_context(parent),
            kind=SpanKind.CLIENT if operation == "chat" else SpanKind.INTERNAL,
            start_time=begin,
            attributes={**known, **attributes},
        )


def _end(span: "Span", now: int, error: str) -> None:
    """End a span; as failed if `error` names a type of error."""
    from opentelemetry.trace import StatusCode

    if error:
        span.set_attribute("error.type", error)
        span.set_status(StatusCode.ERROR)
    span.end(now)


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Environment variables while the block runs: those of .env are in no environment."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def check(settings: Settings) -> None:
    """Raise SettingsError if a collector is set but the packages are missing."""
    if name := next(filter(settings.otel.get, ENDPOINTS), ""):
        extras.require("otel", f"{name} is set")


@contextlib.asynccontextmanager
async def traced(settings: Settings, models: Mapping[str, TracedModel]) -> AsyncIterator[CallTracer | None]:
    """
    A tracer while the block runs, or None without an endpoint. The last spans are sent at the end.

    The SDK reads its standard variables (OTEL_*) from the environment.
    """
    if not any(map(settings.otel.get, ENDPOINTS)):
        yield None
        return
    # Imported here because they take long to load and most gateways have no collector.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    with _environment({"OTEL_BSP_SCHEDULE_DELAY": "1000", **settings.otel}):
        resource = Resource.create()
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": SERVICE}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield CallTracer(provider.get_tracer(SERVICE, metadata.version("voice-gateway")), models)
    finally:
        await asyncio.to_thread(provider.force_flush, FLUSH_MS)
        await asyncio.to_thread(provider.shutdown)
