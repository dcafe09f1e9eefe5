"""
OpenTelemetry traces of calls: a span per conversation and turn, with spans for stages, memory and functions below.

Built from live events, so that calls contain no tracing code. Names follow OpenTelemetry's conventions for generative
AI: `invoke_agent`, `chat`, `execute_tool`, `search_memory`, `upsert_memory`. No span contains words or phone numbers.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from gateway import extras
from gateway.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

SERVICE: Final = "voice-gateway"
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
_MEMORY_STEPS: Final = ("facts", "state", "document", "remote document")


@dataclass
class _Traced:
    """One call: its span, when it ended, and functions that have not returned yet."""

    span: "Span"
    ended_at: int = 0
    functions: dict[str, int] = field(default_factory=dict)


class CallTracer:
    """Turns events into spans. The exporter runs on a thread of its own."""

    def __init__(self, tracer: "Tracer", clock: Callable[[], int] = time.time_ns) -> None:
        self._tracer = tracer
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
            case "memory":
                found = {f"gen_ai.memory.{name}": event[name] for name in ("facts", "calls", "outcome")}
                self._span(call.span, "search_memory", now - int((event["seconds"] or 0.0) * _NS), now, found)
            case "turn" if event.get("stages"):
                self._turn(call, event["stages"], now)
            case "interruption":
                call.span.add_event("interruption", timestamp=now)
            case "function_called":
                call.functions[event["function"]] = now
            case "function_finished":
                begin = call.functions.pop(event["function"], now - int(event["seconds"] * _NS))
                outcome = {"gen_ai.tool.name": event["function"], "voice.ok": event["ok"]}
                self._span(call.span, "execute_tool", begin, now, outcome)
            case "engine_lost" | "engine_back" | "media_lost" | "error":
                call.span.add_event(kind, {"what": str(event.get("what", ""))}, timestamp=now)
            case "hangup":
                call.ended_at = now
                call.span.set_attribute("voice.end_reason", event["reason"])
                call.span.set_attribute("voice.turns", event["turns"])
                call.span.end(now)
            case "step" if event["state"] == "done" and event["step"] in _MEMORY_STEPS:
                kept = {"gen_ai.memory.kind": event["step"]}
                self._span(call.span, "upsert_memory", call.ended_at or now, now, kept)
            case "finished":
                del self._calls[session]

    def _begin(self, event: Mapping[str, Any], now: int) -> None:
        if before := self._calls.pop(event["session"], None):  # resumed with a new media stream
            before.span.end(now)
        elif len(self._calls) >= MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            "gen_ai.agent.name": event["agent"],
            "gen_ai.conversation.id": event["session"],
            "voice.carrier": event["carrier"],
            "voice.attempt": event["attempt"],
        }
        span = self._tracer.start_span(f"invoke_agent {event['agent']}", start_time=now, attributes=attributes)
        self._calls[event["session"]] = _Traced(span)

    def _turn(self, call: _Traced, stages: Mapping[str, float | None], now: int) -> None:
        """`stages` are seconds from the end of the caller's speech; the last one is now."""
        at = {"speech_ended": 0.0, **{stage: seconds for stage, seconds in stages.items() if seconds is not None}}
        zero = now - int(at.get("first_frame", 0.0) * _NS)
        turn = self._span(call.span, "turn", zero + int(min(at.values()) * _NS), None, {})
        for name, (first, last) in _STAGES.items():
            if first in at and last in at:
                begin = zero + int(at[first] * _NS)
                self._span(turn, name, begin, max(begin, zero + int(at[last] * _NS)), {})
        turn.end(now)

    def _span(self, parent: "Span", operation: str, begin: int, end: int | None, attributes: dict[str, Any]) -> "Span":
        from opentelemetry.trace import set_span_in_context

        span = self._tracer.start_span(
            operation,
            context=set_span_in_context(parent),
            start_time=begin,
            attributes={"gen_ai.operation.name": operation, **attributes},
        )
        if end is not None:
            span.end(end)
        return span


def check(settings: Settings) -> None:
    """Raise SettingsError if a collector is set but the packages are missing."""
    if settings.otel_exporter_otlp_endpoint:
        extras.require("otel", "OTEL_EXPORTER_OTLP_ENDPOINT is set")


@contextlib.asynccontextmanager
async def traced(settings: Settings) -> AsyncIterator[CallTracer | None]:
    """A tracer while the block runs, or None without an endpoint. The last spans are sent at the end."""
    if not settings.otel_exporter_otlp_endpoint:
        yield None
        return
    # Imported here because they take long to load and most gateways have no collector.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    endpoint = f"{settings.otel_exporter_otlp_endpoint.rstrip('/')}/v1/traces"
    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=endpoint, timeout=5)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    try:
        yield CallTracer(provider.get_tracer(SERVICE))
    finally:
        await asyncio.to_thread(provider.force_flush, FLUSH_MS)
        await asyncio.to_thread(provider.shutdown)
