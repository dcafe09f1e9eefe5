"""The language model of a recorded call: answers with the recorded summary, in Anthropic's and in xAI's dialect."""

from typing import Any

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.finalization.summary.call_summary import CallSummary
from gateway.settings import Secret


class LlmPlayer:
    """Says one summary, whatever it is asked."""

    def __init__(self, summary: CallSummary | None) -> None:
        self._provider, _, self._model = summary.written_by.partition("/") if summary else ("", "", "")
        self._text = orjson.dumps(summary).decode()

    def settings(self, url: str) -> dict[str, Any]:
        """The settings with which a gateway asks this model, and no other; none for a summary made by rules."""
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
                "content": [{"type": "text", "text": self._text}],
                "stop_reason": "end_turn",
                "stop_sequence": None,
                "usage": {"input_tokens": 1, "output_tokens": 1},
            }
        )

    async def _completion(self, request: Request) -> Response:
        message = {"role": "assistant", "content": self._text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return JSONResponse({"id": "replay", "object": "chat.completion", "model": self._model, "choices": [choice]})
