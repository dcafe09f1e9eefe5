"""
The embedded store for Remem clients. There are three dialects of the Remem API.

Responses are a superset, so a client of any dialect finds its fields. Unknown keys in a request are ignored; a known
key of the wrong type is rejected.
"""

import re
import time
from collections.abc import Sequence
from typing import Any, Final

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.errors import DocumentNotFound
from gateway.history.api_tokens import TokenScope
from gateway.memory.entities import Entity, EntityFact, EntityReader
from gateway.memory.stores.documents import Document, Hit, NewDocument, parse_tags, parse_time, wire_time
from gateway.memory.stores.search import parts
from gateway.memory.visible_documents import (
    DEFAULT_NAMESPACE,
    NAMESPACE_TAG,
    Namespaces,
    VisibleDocuments,
    namespace_of,
    namespace_tags,
)
from gateway.web.auth import Authenticator
from gateway.web.request import Handler, json_endpoint, read_body

_MAX_BODY_BYTES: Final = 1_000_000
_MAX_RESULTS: Final = 100
_MAX_TAGS: Final = 100
_SYNTHESIZED: Final = 3
_WORD: Final = re.compile(r"\w{3,}")
_SENTENCE_END: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_FILTERS: Final = {
    "checkpoint_project": "project",
    "checkpoint_session": "session_id",
    "checkpoint_kinds": "checkpoint_kind",
}
"""The metadata behind the filters of Remem's own clients. Any other filter has the name of its field."""


def routes(visible: VisibleDocuments, entities: EntityReader, auth: Authenticator) -> list[Route]:
    """The routes of the store, for the scope `store`; those that read also for `read`."""
    documents = _Documents(visible, entities)
    handlers: list[tuple[str, str, Handler]] = [
        ("POST", "/v1/documents", documents.create),
        ("POST", "/v1/documents/ingest", documents.ingest),
        ("POST", "/v1/query", documents.query),
        ("GET", "/v1/documents/{id}", documents.read),
        ("PUT", "/v1/documents/{id}", documents.update),
        ("DELETE", "/v1/documents/{id}", documents.delete),
        ("GET", "/v1/documents/{id}/chunks", documents.chunks),
        ("POST", "/v1/documents/{id}/extract-facts", documents.extract_facts),
        ("GET", "/v1/entities", documents.list_entities),
        ("GET", "/v1/entities/{id}/facts", documents.entity_facts),
    ]
    store_only, readers = (TokenScope.STORE,), (TokenScope.STORE, TokenScope.READ)
    return [
        Route(path, json_endpoint(handle, auth, *(readers if method == "GET" else store_only)), methods=[method])
        for method, path, handle in handlers
    ]


class _Documents:
    def __init__(self, visible: VisibleDocuments, entities: EntityReader) -> None:
        self._visible = visible
        self._store = visible.store
        self._entities = entities

    async def create(self, request: Request) -> Response:
        document = await self._store.create(_new_document(await _body(request), request))
        return _Json(_document(document), status_code=201)

    async def ingest(self, request: Request) -> Response:
        """
        The same for clients of Remem's ingest queue, except that a known `source_id` replaces the document.

        There is no queue here: the document is searchable at once.
        """
        body = await _body(request)
        store = self._store.put if body.get("source_id") else self._store.create
        document = await store(_new_document(body, request))
        answer = {"job_id": document.id, "message": "stored"}
        return _Json(answer | {"document_id": document.id} if body.get("return_id") is True else answer)

    async def read(self, request: Request) -> Response:
        return _Json(_document(await self._get(request, "namespaces")))

    async def _get(self, request: Request, parameter: str) -> Document:
        """The document, if it is in the namespaces that the parameter names."""
        document = await self._store.get(request.path_params["id"])
        if parameter in request.query_params and not _namespaces(request.query_params[parameter]).admit(document):
            raise DocumentNotFound(document.id)
        return document

    async def chunks(self, request: Request) -> Response:
        document, limit = await self._get(request, "namespaces"), _number(request, "limit", default=200, most=1000)
        with_content = _flag(request, "include_content")
        chunks = [
            {"chunk_index": number, "content": text} if with_content else {"chunk_index": number}
            for number, text in enumerate(parts(document.content)[:limit])
        ]
        return _Json({"document_id": document.id, "chunks": chunks})

    async def extract_facts(self, request: Request) -> Response:
        """Facts are read from the documents on request, so there is nothing to wait for."""
        document = await self._get(request, "namespace")
        answer = {"status": "accepted", "document_id": document.id, "fact_extraction_status": "completed"}
        return _Json(answer, status_code=202)

    async def list_entities(self, request: Request) -> Response:
        limit, offset = _number(request, "limit", default=50, most=200), _number(request, "offset", least=0)
        kind = request.query_params.get("type", "")
        namespaces = _namespaces(request.query_params.get("namespaces"))
        page, total = await self._entities.entities(namespaces, kind=kind, limit=limit, offset=offset)
        return _Json({"entities": list(map(_entity, page)), "total": total, "limit": limit, "offset": offset})

    async def entity_facts(self, request: Request) -> Response:
        namespaces, latest_only = _namespaces(request.query_params.get("namespaces")), _flag(request, "latest_only")
        kind = request.query_params.get("fact_type", "")
        entity, facts = await self._entities.entity(request.path_params["id"], namespaces, latest_only=latest_only)
        wanted = [_fact(fact) for fact in facts if kind in ("", fact.type)]
        return _Json({"entity": _entity(entity), "facts": wanted, "total": len(wanted)})

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
        await self._visible.delete(request.path_params["id"])
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
        namespaces, filters = _namespaces(body.get("namespaces")), _filters(body.get("filters"))
        hits = await self._visible.query(
            text,
            limit=limit,
            tags=(*_tags(body.get("tags")), *namespaces.tags),
            accepts=lambda document: namespaces.admit(document) and _matches(document, filters),
        )
        is_rich = body.get("mode") == "rich"
        answer: dict[str, Any] = {
            "mode": "rich" if is_rich else "fast",
            "query": text,
            "total_chunks": len(hits),
            "namespaces": list(namespaces.names),
            "results": [_result(hit) for hit in hits],
        }
        if is_rich and body.get("synthesize") is True and hits:
            answer["synthesis"] = _synthesis(text, hits)
            best = [hit.document for hit in hits[:_SYNTHESIZED]]
            answer["sources"] = [f"{document.title or 'Untitled'} ({document.id})" for document in best]
        if body.get("include_facts") is True:
            latest_only = body.get("facts_only_latest") is not False
            facts = await self._entities.facts(
                text, namespaces, entity=_text(body, "entity"), latest_only=latest_only, limit=limit
            )
            answer["facts"] = [_fact(fact) for fact in facts]
        return _Json(answer | {"latency_ms": round((time.perf_counter() - started) * 1000)})


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
    namespace = namespace_tags(_text(body, "namespace").strip())
    source_id = _text(body, "source_id") or request.headers.get("Idempotency-Key", "")
    tags = _tags(body.get("tags")) or _tags(metadata.get("tags"))
    return NewDocument(
        title=_text(body, "title"),
        content=_required_text(body, "content"),
        source=_text(body, "source") or "api",
        tags=(*(tag for tag in tags if not tag.startswith(NAMESPACE_TAG)), *namespace),
        created_at=created,
        metadata=metadata,
        # Namespaces do not share source ids.
        source_id="/".join((*namespace, source_id)) if source_id else "",
    )


def _namespaces(value: object) -> Namespaces:
    """From a list, or from text with commas; without a value the default namespace."""
    try:
        return Namespaces(parse_tags(value) or (DEFAULT_NAMESPACE,))
    except ValueError:
        raise HTTPException(422, "namespaces must be a list of strings") from None


def _filters(value: object) -> dict[str, tuple[str, ...]]:
    """The values that each field may have, in lower case."""
    if value is not None and not isinstance(value, dict):
        raise HTTPException(422, "filters must be an object")
    given: dict[str, Any] = value or {}
    lists = {_FILTERS.get(name, name): one if isinstance(one, list) else [one] for name, one in given.items()}
    return {name: tuple(str(one).casefold() for one in values) for name, values in lists.items()}


def _matches(document: Document, filters: dict[str, tuple[str, ...]]) -> bool:
    """Whether each field, of the document or of its metadata, has one of its values."""
    for name, values in filters.items():
        own = document.tags if name == "tags" else document.metadata.get(name, getattr(document, name, None))
        texts = {str(one).casefold() for one in (own if isinstance(own, list | tuple) else [own])}
        if values and texts.isdisjoint(values):
            return False
    return True


def _flag(request: Request, name: str) -> bool:
    """A parameter that is true unless it says otherwise."""
    return request.query_params.get(name, "true").casefold() not in ("false", "0", "no")


def _number(request: Request, name: str, *, default: int = 0, least: int = 1, most: int = 2**31) -> int:
    try:
        return min(max(int(request.query_params.get(name, default)), least), most)
    except ValueError:
        raise HTTPException(422, f"{name} must be a whole number") from None


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
        "source_id": document.source_id.removeprefix(f"{NAMESPACE_TAG}{namespace_of(document)}/"),
    }


def _result(hit: Hit) -> dict[str, Any]:
    return {
        **_described(hit.document),
        "snippet": hit.snippet,
        "summary": hit.snippet,
        "chunks": [{"content": hit.snippet, "score": hit.score}],
        "score": hit.score,
    }


def _synthesis(question: str, hits: Sequence[Hit]) -> str:
    """The best results in their own words: of each the sentences that share most words with the question."""
    words = frozenset(_WORD.findall(question.casefold()))
    texts = []
    for hit in hits[:_SYNTHESIZED]:
        lines = [line.strip("#*- \t") for line in _SENTENCE_END.split(hit.snippet)]
        sentences = [line for line in lines if " " in line]
        sentences.sort(key=lambda text: -len(words & set(_WORD.findall(text.casefold()))))
        texts += sentences[:2] or [hit.snippet]
    return "\n".join(dict.fromkeys(texts))


def _entity(entity: Entity) -> dict[str, Any]:
    return {
        "id": entity.id,
        "name": entity.name,
        "entity_type": entity.type,
        "fact_count": entity.fact_count,
        "mention_count": entity.mention_count,
    }


def _fact(fact: EntityFact) -> dict[str, Any]:
    replaced = [{"rel_type": "replaces", "related_fact_content": fact.instead_of}] if fact.instead_of else []
    return {
        "fact_type": fact.type,
        "content": fact.content,
        "confidence": fact.confidence,
        "entities": list(fact.entities),
        "relationships": replaced,
    }


def _described(document: Document) -> dict[str, Any]:
    return {
        "id": document.id,
        "document_id": document.id,
        "title": document.title,
        "source": document.source,
        "namespace": namespace_of(document),
        "tags": [tag for tag in document.tags if not tag.startswith(NAMESPACE_TAG)],
        "created_at": wire_time(document.created_at),
        "metadata": document.metadata,
    }
