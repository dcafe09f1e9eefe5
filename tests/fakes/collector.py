"""An OpenTelemetry collector that receives traces over OTLP/HTTP (protobuf) and records their spans."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.simulate.gateway_under_test import serve_on_loopback

PROTOBUF = "application/x-protobuf"


class FakeCollector:
    """Received spans in order, and headers and resource of the last request; `url` is the base URL."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.bodies: list[bytes] = []
        self.headers: dict[str, str] = {}
        self.resource: dict[str, str] = {}
        self.url = ""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Self]:
        async with serve_on_loopback(Starlette(routes=[Route("/v1/traces", self._take, methods=["POST"])])) as self.url:
            yield self

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]

    async def _take(self, request: Request) -> Response:
        assert request.headers["content-type"] == PROTOBUF
        body = await request.body()
        self.bodies.append(body)
        sent = ExportTraceServiceRequest.FromString(body)
        self.headers = dict(request.headers)
        self.resource = {one.key: one.value.string_value for one in sent.resource_spans[0].resource.attributes}
        self.spans += [span for one in sent.resource_spans for scope in one.scope_spans for span in scope.spans]
        return Response(ExportTraceServiceResponse().SerializeToString(), media_type=PROTOBUF)
