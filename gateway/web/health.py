"""For operators and load balancers: `/health`, `/ready` and `/metrics`."""

from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route


def routes(
    state: Callable[[], dict[str, Any]], ready: Callable[[], bool], metrics: Callable[[], Awaitable[str]]
) -> list[Route]:
    """`/health` answers while the process is alive, `/ready` with 200 while calls are accepted."""

    async def show_health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", **state()})

    async def show_readiness(request: Request) -> JSONResponse:
        is_ready = ready()
        return JSONResponse({"ready": is_ready}, status_code=200 if is_ready else 503)

    async def show_metrics(request: Request) -> PlainTextResponse:
        return PlainTextResponse(await metrics(), media_type="text/plain; version=0.0.4")

    return [Route("/health", show_health), Route("/ready", show_readiness), Route("/metrics", show_metrics)]
