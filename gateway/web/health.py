"""For operators and load balancers: alive, ready, and how much of what."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route


def routes(
    state: Callable[[], dict[str, Any]], ready: Callable[[], bool], counted: Callable[[], Awaitable[str]]
) -> list[Route]:
    """`/health` answers while the process lives, `/ready` while calls are taken, `/metrics` what was counted."""

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", **state()})

    async def readiness(request: Request) -> JSONResponse:
        return JSONResponse({"ready": ready()}, status_code=200 if ready() else 503)

    async def counts(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await counted(), media_type="text/plain; version=0.0.4")

    return [Route("/health", health), Route("/ready", readiness), Route("/metrics", counts)]
