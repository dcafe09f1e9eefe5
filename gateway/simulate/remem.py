"""A simulated remote memory store that returns its documents late."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.settings import Secret


class SimulatedRemem:
    """Answers every query with all its documents, after `ready` has returned. Discards what is written to it."""

    def __init__(self, documents: Sequence[dict[str, Any]], ready: Callable[[], Awaitable[object]]) -> None:
        self._documents = documents
        self._ready = ready

    def settings(self, url: str) -> dict[str, Any]:
        """Gateway settings that make this the remote store; none if it has no documents."""
        return {"remem_api_url": url, "remem_api_key": Secret("replay")} if self._documents else {}

    def routes(self) -> list[Route]:
        return [
            Route("/v1/query", self._query, methods=["POST"]),
            Route("/v1/documents", self._create, methods=["POST"]),
        ]

    async def _query(self, request: Request) -> Response:
        await self._ready()
        return JSONResponse({"results": [document | {"snippet": document["content"]} for document in self._documents]})

    async def _create(self, request: Request) -> Response:
        return JSONResponse({"id": "replay"}, status_code=201)
