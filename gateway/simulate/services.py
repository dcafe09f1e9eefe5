"""The language model that writes summaries, simulated."""

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.settings import Secret


class SimulatedLlm:
    """
    Always gives the same answer, through Anthropic's and xAI's APIs.

    `written_by` is "provider/model" as a summary records it, or "extractive", or empty: then the gateway uses no model.
    For other providers it takes the place of Anthropic's.
    """

    def __init__(self, written_by: str, answer: str) -> None:
        self._provider, _, self._model = written_by.partition("/")
        self._answer = answer

    def settings(self, url: str) -> dict[str, Any]:
        """Gateway settings that make this the model for summaries."""
        key = Secret("replay")
        match self._provider:
            case "" | "extractive":
                return {"summary_provider": "extractive"}
            case "xai":
                access: dict[str, Any] = {"summary_provider": "xai", "xai_api_key": key, "xai_api_url": url}
            case _:
                access = {"summary_provider": "anthropic", "anthropic_api_key": key, "anthropic_base_url": url}
        return access | {"summary_model": self._model}

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
