"""Traces for an OpenTelemetry collector, where one is named."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from gateway import extras
from gateway.history.traces import CallTracer
from gateway.settings import Settings

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

SERVICE: Final = "voice-gateway"
CLOSING_MS: Final = 5000


def check(settings: Settings) -> None:
    """Raise SettingsError if a collector is set but the packages are missing."""
    if settings.otel_exporter_otlp_endpoint:
        extras.require("otel", "OTEL_EXPORTER_OTLP_ENDPOINT is set")


@contextlib.asynccontextmanager
async def traced(settings: Settings) -> AsyncIterator[CallTracer | None]:
    """A tracer of calls while the block runs; its last spans are sent at the end."""
    if not settings.otel_exporter_otlp_endpoint:
        yield None
        return
    provider = _provider(settings.otel_exporter_otlp_endpoint)
    try:
        yield CallTracer(provider.get_tracer(SERVICE))
    finally:
        await asyncio.to_thread(provider.force_flush, CLOSING_MS)
        await asyncio.to_thread(provider.shutdown)


def _provider(endpoint: str) -> "TracerProvider":
    # Only here: they take a while to import, and most have no collector.
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=Resource.create({"service.name": SERVICE}), shutdown_on_exit=False)
    exporter = OTLPSpanExporter(endpoint=f"{endpoint.rstrip('/')}/v1/traces", timeout=5)
    provider.add_span_processor(BatchSpanProcessor(exporter, schedule_delay_millis=1000))
    return provider
