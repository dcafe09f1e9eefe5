"""For operators and load balancers: alive, and ready."""

from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


def routes(state: Callable[[], dict[str, Any]], ready: Callable[[], bool]) -> list[Route]:
    """`/health` answers while the process lives, with component states; `/ready` only while calls are taken."""

    async def health(request: Request) -> JSONResponse:
        return JSONResponse({"status": "ok", **state()})

    async def readiness(request: Request) -> JSONResponse:
        return JSONResponse({"ready": ready()}, status_code=200 if ready() else 503)

    return [Route("/health", health), Route("/ready", readiness)]
