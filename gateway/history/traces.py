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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from gateway import extras
from gateway.errors import SettingsError
from gateway.response_time import CountedFrom
from gateway.session import FAILURES
from gateway.settings import Settings, is_url

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

SERVICE: Final = "voice-gateway"
DISABLED: Final = "OTEL_SDK_DISABLED"
ENDPOINTS: Final = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPORTER: Final = "OTEL_TRACES_EXPORTER"
PROTOCOLS: Final = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
FLUSH_MS: Final = 5000
MAX_CALLS: Final = 10_000
"""Unfinished calls that are traced; beyond it the oldest is dropped."""

_NS: Final = 1_000_000_000
_STAGES: Final = {
    "detect_end_of_turn": ("voiced", "speech_ended"),
    "transcribe": ("speech_ended", "transcript"),
    "synthesize": ("first_token", "first_audio"),
    "send": ("first_audio", "first_frame"),
}
"""Each with the stages at its start and end."""
_FIRST_TOKEN: Final = "gen_ai.response.time_to_first_chunk"
_USAGE: Final = {
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "cached_tokens": "gen_ai.usage.cache_read.input_tokens",
}
_REMOTE_STORE: Final = "remem"
_OPERATIONS: Final = ("chat", "execute_tool", "search_memory", "upsert_memory")
_REMOTE_STEP: Final = "remote document"
_MEMORY_STEPS: Final = ("facts", "state", "document", _REMOTE_STEP)
_PROVIDERS: Final = {
    "xai": "x_ai",
    "open_ai": "openai",
    "azure": "azure.ai.openai",
    "google": "gcp.gemini",
    "aws_bedrock": "aws.bedrock",
}
"""The conventions' names of providers, where they differ from ours or Deepgram's."""


@dataclass
class _Traced:
    """One call, with the parts that are not complete yet."""

    span: "Span"
    session: str
    turn: "Span"
    """The last answered turn; before the first, the call itself."""
    turn_ended_at: int
    caller_spoke: bool = False
    """Since that turn was answered."""
    attempts: list[tuple[Mapping[str, Any], int]] = field(default_factory=list)
    """Requests to the agent's own language model that are over, with their end. Their turn has no answer yet."""
    chat: "Span | None" = None
    """The engine's own language model, whose answer may have more text."""
    chat_ended_at: int = 0


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
            case "memory" if event["outcome"] != "off":
                self._memory(call, event, now)
            case "turn" | "answer_started" if event.get("stages"):
                self._turn(call, event, now)
            case "turn" if event.get("speaker") == "caller" and not event.get("late"):
                self._end_chat(call)
                call.caller_spoke = True
            case "turn" if event.get("speaker") == "agent" and not event.get("by_operator"):
                call.chat_ended_at = now
            case "model_finished" if call.caller_spoke and _began_at(event, now) >= call.turn_ended_at:
                call.attempts.append((event, now))
            case "model_finished":
                self._attempt(call, call.turn, event, now)
            case "interruption":
                call.span.add_event("interruption", timestamp=now)
            case "function_finished":
                self._function(call, event, now)
            case "engine_lost" | "engine_back" | "media_lost" | "error":
                call.span.add_event(kind, {"what": str(event.get("what", ""))}, timestamp=now)
            case "hangup":
                self._end_call(call, event, now)
            case "step" if event["step"] in _MEMORY_STEPS and event["state"] != "waits" and event.get("ran", True):
                self._step(call, event, now)
            case "finished":
                del self._calls[session]

    def _begin(self, event: Mapping[str, Any], now: int) -> None:
        if before := self._calls.pop(event["session"], None):  # resumed with a new media stream
            self._end_chats(before)
            before.span.end(now)
        elif len(self._calls) >= MAX_CALLS:
            del self._calls[next(iter(self._calls))]
        attributes = {
            "gen_ai.operation.name": "invoke_agent",
            **_model(event),
            "gen_ai.agent.name": event["agent"],
            "gen_ai.conversation.id": event["session"],
            "voice.carrier": event["carrier"],
            "voice.attempt": event["attempt"],
        }
        if event.get("version"):
            attributes["gen_ai.agent.version"] = event["version"]
        span = self._tracer.start_span(f"invoke_agent {event['agent']}", start_time=now, attributes=attributes)
        self._calls[event["session"]] = _Traced(span, event["session"], turn=span, turn_ended_at=now)

    def _end_call(self, call: _Traced, event: Mapping[str, Any], now: int) -> None:
        self._end_chats(call)
        call.span.set_attribute("voice.end_reason", event["reason"])
        call.span.set_attribute("voice.turns", event["turns"])
        _end(call.span, now, event["reason"] if event["reason"] in FAILURES else "")

    def _turn(self, call: _Traced, event: Mapping[str, Any], now: int) -> None:
        """Stages are in seconds from where the response time is counted. The last one is now."""
        counted_from = event["counted_from"]
        start = {CountedFrom.VOICE: "voiced", CountedFrom.ENGINE: "speech_ended"}.get(counted_from, "transcript")
        seconds = {start: 0.0, **{stage: at for stage, at in event["stages"].items() if at is not None}}
        zero = now - int(seconds.get("first_frame", 0.0) * _NS)
        at = {stage: zero + int(since * _NS) for stage, since in seconds.items()}
        attributes = {"voice.response_time": event["latency"], "voice.response_time.counted_from": counted_from}
        begin = min(at.values())
        turn = self._span(call.span, "turn", begin, attributes)
        for name, (first, last) in _STAGES.items():
            if first in at and last in at:
                self._span(turn, name, at[first], {}).end(max(at[first], at[last]))
        self._end_chat(call)
        for attempt, ended_at in call.attempts:
            self._attempt(call, turn if ended_at >= begin else call.span, attempt, ended_at)
        if "provider" in event and {"llm_request", "first_token"} <= at.keys():
            waited = max(seconds["first_token"] - seconds["llm_request"], 0.0)
            call.chat = self._chat(call, turn, event, at["llm_request"], {_FIRST_TOKEN: waited})
        turn.end(now)
        call.turn, call.turn_ended_at, call.caller_spoke, call.attempts, call.chat_ended_at = turn, now, False, [], now

    # Language models

    def _attempt(self, call: _Traced, parent: "Span", event: Mapping[str, Any], now: int) -> None:
        """One request to the agent's own language model, which has ended now."""
        attributes: dict[str, Any] = {"gen_ai.request.stream": True}
        if event["first_token"] is not None:
            attributes[_FIRST_TOKEN] = event["first_token"]
        if event["outcome"] == "cancelled":
            attributes["voice.cancelled"] = True
        attributes |= {attribute: event[name] for name, attribute in _USAGE.items() if name in event}
        _end(self._chat(call, parent, event, _began_at(event, now), attributes), now, event["error"])

    def _chat(
        self, call: _Traced, parent: "Span", event: Mapping[str, Any], begin: int, attributes: Mapping[str, Any]
    ) -> "Span":
        attributes = {**_model(event), "gen_ai.conversation.id": call.session, **attributes}
        return self._span(parent, f"chat {event['model']}".strip(), begin, attributes, is_remote=True)

    def _end_chat(self, call: _Traced) -> None:
        """The engine's own model: its answer is complete with its last text."""
        if call.chat is not None:
            call.chat.end(call.chat_ended_at)
            call.chat = None

    def _end_chats(self, call: _Traced) -> None:
        self._end_chat(call)
        for attempt, ended_at in call.attempts:  # nothing was answered
            self._attempt(call, call.span, attempt, ended_at)
        call.attempts, call.caller_spoke = [], False

    # Functions and memory

    def _function(self, call: _Traced, event: Mapping[str, Any], now: int) -> None:
        attributes = {"gen_ai.tool.name": event["function"], "gen_ai.tool.type": "function"}
        attributes["gen_ai.tool.call.id"] = event["tool_call"]
        span = self._span(call.span, f"execute_tool {event['function']}", _began_at(event, now), attributes)
        _end(span, now, "" if event["ok"] else "tool_failed")

    def _step(self, call: _Traced, event: Mapping[str, Any], now: int) -> None:
        is_remote = event["step"] == _REMOTE_STEP
        attributes = {"voice.memory.kind": event["step"]}
        if is_remote:  # our own store is no provider
            attributes["gen_ai.provider.name"] = _REMOTE_STORE
        span = self._span(call.span, "upsert_memory", _began_at(event, now), attributes, is_remote=is_remote)
        _end(span, now, "" if event["state"] == "done" else event["state"])

    def _memory(self, call: _Traced, event: Mapping[str, Any], now: int) -> None:
        attributes = {
            "gen_ai.memory.record.count": event["facts"] + event["calls"],
            "voice.memory.facts": event["facts"],
            "voice.memory.calls": event["calls"],
            "voice.memory.outcome": event["outcome"],
        }
        span = self._span(call.span, "search_memory", _began_at(event, now), attributes)
        _end(span, now, "memory_failed" if event["outcome"] == "failed" else "")

    def _span(
        self, parent: "Span", name: str, begin: int, attributes: Mapping[str, Any], *, is_remote: bool = False
    ) -> "Span":
        """Spans of the conventions have names that begin with the operation; the others have no attribute for it."""
        from opentelemetry.trace import SpanKind, set_span_in_context

        operation = name.partition(" ")[0]
        known = {"gen_ai.operation.name": operation} if operation in _OPERATIONS else {}
        return self._tracer.start_span(
            name,
            context=set_span_in_context(parent),
            kind=SpanKind.CLIENT if is_remote else SpanKind.INTERNAL,
            start_time=begin,
            attributes={**known, **attributes},
        )


def _model(event: Mapping[str, Any]) -> dict[str, str]:
    model = {"gen_ai.request.model": event["model"]} if event["model"] else {}
    return {"gen_ai.provider.name": _PROVIDERS.get(event["provider"], event["provider"]), **model}


def _began_at(event: Mapping[str, Any], now: int) -> int:
    """The start of what has ended now."""
    return now - int((event["seconds"] or 0.0) * _NS)


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
    """
    Raise SettingsError if a collector is set but the packages are missing, its address is none, or another exporter or
    protocol is set.
    """
    name = _endpoint(settings)
    if not name:
        return
    if (exporter := settings.otel.get(EXPORTER, "otlp").strip()) != "otlp":
        raise SettingsError(f"{EXPORTER} is {exporter!r}; use otlp, or none for no traces")
    if not is_url(address := settings.otel[name].strip(), ("http", "https")):
        path = "/v1/traces" if "TRACES" in name else ""
        raise SettingsError(f"{name} is {address!r}; write it like http://127.0.0.1:4318{path}")
    protocol = next(filter(settings.otel.get, PROTOCOLS), "")
    if protocol and (given := settings.otel[protocol].strip()) != "http/protobuf":
        todo = f"remove it, and name the collector's HTTP port in {name}, such as http://127.0.0.1:4318"
        raise SettingsError(f"{protocol} is {given!r}, but traces are sent by http/protobuf; {todo}")
    extras.require("otel", f"{name} is set")


def _endpoint(settings: Settings) -> str:
    """The variable that names the collector; empty if there are no traces."""
    if settings.otel.get(EXPORTER, "").strip() == "none" or settings.otel.get(DISABLED, "").strip().lower() == "true":
        return ""
    return next(filter(settings.otel.get, ENDPOINTS), "")


@contextlib.asynccontextmanager
async def traced(settings: Settings) -> AsyncIterator[CallTracer | None]:
    """
    A tracer while the block runs, or None without an endpoint. The last spans are sent at the end.

    The SDK reads its standard variables (OTEL_*) from the environment.
    """
    if not _endpoint(settings):
        yield None
        return
    # Imported here because they take long to load and most gateways have no collector.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    with _environment({"OTEL_BSP_SCHEDULE_DELAY": "1000", **settings.otel}):
        resource = Resource({"service.version": metadata.version("voice-gateway")}).merge(Resource.create())
        if str(resource.attributes["service.name"]).startswith("unknown_service"):
            resource = resource.merge(Resource({"service.name": SERVICE}))
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    try:
        yield CallTracer(provider.get_tracer(SERVICE, metadata.version("voice-gateway")))
    finally:
        await asyncio.to_thread(provider.force_flush, FLUSH_MS)
        await asyncio.to_thread(provider.shutdown)
