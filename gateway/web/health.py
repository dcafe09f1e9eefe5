"""Endpoints without credentials: health, readiness, `/metrics`, and `/openapi.json`, which describes `/v1/*`."""

import functools
from collections.abc import Awaitable, Callable
from importlib import metadata, resources
from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route


def routes(
    state: Callable[[], dict[str, Any]], ready: Callable[[], bool], metrics: Callable[[], Awaitable[str]]
) -> list[Route]:
    """`/health` answers while the process is alive, `/ready` with 200 while calls are accepted."""

    async def show_health(request: Request) -> Response:
        return JSONResponse({"status": "ok", **state()})

    async def show_readiness(request: Request) -> Response:
        is_ready = ready()
        return JSONResponse({"ready": is_ready}, status_code=200 if is_ready else 503)

    async def show_remem_readiness(request: Request) -> Response:
        """As Remem's clients read it."""
        status = "healthy" if ready() else "unhealthy"
        services = [{"name": name, "status": status} for name in ("api", "worker")]
        return JSONResponse({"status": status, "services": services}, status_code=200 if status == "healthy" else 503)

    async def show_metrics(request: Request) -> Response:
        return PlainTextResponse(await metrics(), media_type="text/plain; version=0.0.4")

    async def show_description(request: Request) -> Response:
        return Response(orjson.dumps(api_description()), media_type="application/json")

    return [
        Route("/health", show_health),
        Route("/ready", show_readiness),
        Route("/health/ready", show_remem_readiness),
        Route("/metrics", show_metrics),
        Route("/openapi.json", show_description),
    ]


@functools.cache
def api_description() -> dict[str, Any]:
    """openapi.json, which `tests/web/test_openapi.py` compares with the routes and with real responses."""
    content = (resources.files("gateway.web") / "openapi.json").read_bytes()
    description: dict[str, Any] = orjson.loads(content)
    description["info"]["version"] = metadata.version("voice-gateway")
    return description
