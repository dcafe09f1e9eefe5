"""
The embedded store for Remem clients. There are three dialects of the Remem API.

Responses are a superset, so a client of any dialect finds its fields. Unknown keys in a request are ignored; a known
key of the wrong type is rejected.
"""

import time
from collections.abc import Sequence
from typing import Any, Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.memory.stores.documents import Document, Hit, NewDocument, parse_tags, parse_time, wire_time
from gateway.memory.visible_documents import VisibleDocuments
from gateway.settings import Secret
from gateway.web.request import Handler, json_endpoint, read_body

_MAX_BODY_BYTES: Final = 1_000_000
_MAX_RESULTS: Final = 100
_MAX_TAGS: Final = 100


def routes(store: VisibleDocuments, keys: Sequence[Secret]) -> list[Route]:
    """The routes of the store. Any of `keys` gives access; without keys every request is rejected."""
    documents = _Documents(store)
    handlers: list[tuple[str, str, Handler]] = [
        ("POST", "/v1/documents", documents.create),
        ("POST", "/v1/documents/ingest", documents.ingest),
        ("POST", "/v1/query", documents.query),
        ("GET", "/v1/documents/{id}", documents.read),
        ("PUT", "/v1/documents/{id}", documents.update),
        ("DELETE", "/v1/documents/{id}", documents.delete),
    ]
    return [Route(path, json_endpoint(handle, keys, "API key"), methods=[method]) for method, path, handle in handlers]


class _Documents:
    def __init__(self, store: VisibleDocuments) -> None:
        self._store = store

    async def create(self, request: Request) -> Response:
        document = await self._store.create(_new_document(await _body(request), request))
        return _Json(_document(document), status_code=201)

    async def ingest(self, request: Request) -> Response:
        """The same for clients of Remem's ingest queue. There is no queue here: the document is searchable at once."""
        body = await _body(request)
        document = await self._store.create(_new_document(body, request))
        answer = {"job_id": document.id, "message": "stored"}
        return _Json(answer | {"document_id": document.id} if body.get("return_id") is True else answer)

    async def read(self, request: Request) -> Response:
        return _Json(_document(await self._store.get(request.path_params["id"])))

    async def update(self, request: Request) -> Response:
        body, document_id = await _body(request), request.path_params["id"]
        content, mode = _required_text(body, "content"), _text(body, "mode") or "replace"
        if mode == "append":
            document = await self._store.append(document_id, content)
        elif mode == "replace":
            document = await self._store.replace(document_id, content, title=_text(body, "title") or None)
        else:
            raise HTTPException(422, "mode must be replace or append")
        return _Json(_document(document))

    async def delete(self, request: Request) -> Response:
        await self._store.delete(request.path_params["id"])
        return Response(status_code=204)

    async def query(self, request: Request) -> Response:
        started = time.perf_counter()
        body = await _body(request)
        text = _required_text(body, "text", "query")
        given = (body.get(name) for name in ("limit", "max_results", "maxResults"))
        limit = next((value for value in given if value is not None), 10)
        if not isinstance(limit, int) or isinstance(limit, bool):
            raise HTTPException(422, "limit must be a whole number")
        limit = min(max(limit, 1), _MAX_RESULTS)
        hits = await self._store.query(text, limit=limit, tags=_tags(body.get("tags")))
        answer: dict[str, Any] = {
            "mode": "fast",
            "query": text,
            "total_chunks": len(hits),
            "latency_ms": round((time.perf_counter() - started) * 1000),
            "results": [_result(hit) for hit in hits],
        }
        return _Json(answer | {"facts": []} if body.get("include_facts") is True else answer)


class _Json(JSONResponse):
    """With orjson: a query response contains ten documents."""

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


# Requests


async def _body(request: Request) -> dict[str, Any]:
    try:
        body = orjson.loads(await read_body(request, _MAX_BODY_BYTES, too_large="the body is larger than 1 MB"))
    except orjson.JSONDecodeError:
        raise HTTPException(422, "the body is not JSON") from None
    if not isinstance(body, dict):
        raise HTTPException(422, "the body must be a JSON object")
    return body


def _new_document(body: dict[str, Any], request: Request) -> NewDocument:
    metadata = body.get("metadata") or {}
    if not isinstance(metadata, dict):
        raise HTTPException(422, "metadata must be an object")
    try:
        orjson.dumps(metadata)
    except orjson.JSONEncodeError:  # orjson parses deeper nesting than it writes
        raise HTTPException(422, "metadata is nested too deeply") from None
    created_at = _text(body, "created_at")
    try:
        created = parse_time(created_at) if created_at else None
    except ValueError as error:
        raise HTTPException(422, f"created_at is {error}") from None
    return NewDocument(
        title=_text(body, "title"),
        content=_required_text(body, "content"),
        source=_text(body, "source") or "api",
        tags=_tags(body.get("tags")) or _tags(metadata.get("tags")),
        created_at=created,
        metadata=metadata,
        source_id=_text(body, "source_id") or request.headers.get("Idempotency-Key", ""),
    )


def _text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise HTTPException(422, f"{name} must be a string")
    return (value or "").replace("\0", "")  # PostgreSQL rejects NUL in text


def _required_text(body: dict[str, Any], *names: str) -> str:
    """The first of `names` that is there."""
    for name in names:
        if body.get(name) is not None:
            return _text(body, name)
    raise HTTPException(422, f"{' or '.join(names)} is missing")


def _tags(value: object) -> tuple[str, ...]:
    try:
        tags = parse_tags(value)
    except ValueError as error:
        raise HTTPException(422, str(error)) from None
    if len(tags) > _MAX_TAGS:
        raise HTTPException(422, f"more than {_MAX_TAGS} tags")
    return tags


# Responses


def _document(document: Document) -> dict[str, Any]:
    return {
        **_described(document),
        "content": document.content,
        "updated_at": wire_time(document.updated_at),
        "source_id": document.source_id,
    }


def _result(hit: Hit) -> dict[str, Any]:
    return {
        **_described(hit.document),
        "snippet": hit.snippet,
        "summary": hit.snippet,
        "chunks": [{"content": hit.snippet, "score": hit.score}],
        "score": hit.score,
    }


def _described(document: Document) -> dict[str, Any]:
    return {
        "id": document.id,
        "document_id": document.id,
        "title": document.title,
        "source": document.source,
        "tags": list(document.tags),
        "created_at": wire_time(document.created_at),
        "metadata": document.metadata,
    }
