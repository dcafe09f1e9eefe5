"""The other store of a recorded call, where some of what it knew came in mid-call: it answers as late as it did."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.replay.engine_player import EnginePlayer
from gateway.replay.expected import past_document
from gateway.replay.recording import RecordedMessage, Recording
from gateway.settings import Secret

_PATIENCE: Final = 10.0


class RememPlayer:
    """Knows the calls that came late, and tells them once the engine has got what it got before."""

    def __init__(self, recording: Recording, engine: EnginePlayer) -> None:
        self._engine = engine
        known = {call.session_id for call in recording.memory.calls}
        late = recording.late_memory.calls if recording.late_memory is not None else ()
        self._calls = [call for call in late if call.session_id not in known]
        self._header = recording.header
        self._messages_before = _messages_before_update(recording)

    def settings(self, url: str) -> dict[str, Any]:
        """The settings with which a gateway asks this store; none where nothing came late."""
        return {"remem_api_url": url, "remem_api_key": Secret("replay")} if self._calls else {}

    def routes(self) -> list[Route]:
        return [
            Route("/v1/query", self._query, methods=["POST"]),
            Route("/v1/documents", self._create, methods=["POST"]),
        ]

    async def _query(self, request: Request) -> Response:
        await self._engine.inbox.holds(messages=self._messages_before, sound_bytes=0, patience=_PATIENCE)
        documents = (past_document(call, self._header) for call in self._calls)
        return JSONResponse({"results": [document | {"snippet": document["content"]} for document in documents]})

    async def _create(self, request: Request) -> Response:
        return JSONResponse({"id": "replay"}, status_code=201)


def _messages_before_update(recording: Recording) -> int:
    """How many messages the engine had got when it was told more."""
    count = 0
    for step in recording.steps:
        if step.direction == "to" and step.peer == "engine" and isinstance(step.content, RecordedMessage):
            if step.content.fields.get("type") == "UpdatePrompt":
                break
            count += step.content.fields.get("type") != "KeepAlive"
    return count
