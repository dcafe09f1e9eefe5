"""Simulated HTTP services beside a call: the language model that writes summaries, and a remote memory store."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.settings import Secret


class SimulatedLlm:
    """
    Always gives the same answer, through Anthropic's and xAI's APIs.

    `written_by` is "provider/model" as a summary records it; without a known provider the gateway uses no model.
    """

    def __init__(self, written_by: str, answer: str) -> None:
        self._provider, _, self._model = written_by.partition("/")
        self._answer = answer

    def settings(self, url: str) -> dict[str, Any]:
        """Gateway settings that make this the model for summaries."""
        key = Secret("replay")
        match self._provider:
            case "anthropic":
                access: dict[str, Any] = {"anthropic_api_key": key, "anthropic_base_url": url}
            case "xai":
                access = {"xai_api_key": key, "xai_api_url": url}
            case _:
                return {"summary_provider": "extractive"}
        return access | {"summary_provider": self._provider, "summary_model": self._model}

    def routes(self) -> list[Route]:
        return [
            Route("/v1/messages", self._message, methods=["POST"]),
            Route("/chat/completions", self._completion, methods=["POST"]),
        ]

    async def _message(self, request: Request) -> Response:
        return JSONResponse(
            {
                "id": "msg_replay",
                "type": "message",
                "role": "assistant",
                "model": self._model,
                "content": [{"type": "text", "text": self._answer}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        )

    async def _completion(self, request: Request) -> Response:
        message = {"role": "assistant", "content": self._answer}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse({"id": "replay", "object": "chat.completion", "model": self._model, "choices": [choice]})


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
