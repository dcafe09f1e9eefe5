"""
`GET /openapi.json`: the OpenAPI 3.1 description of `/v1/*`, for anyone.

Written by hand beside the endpoints; `tests/web/test_openapi.py` compares it with the routes and with real responses.
"""

from collections.abc import Mapping, Sequence
from importlib import metadata
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

PATH: Final = "/openapi.json"

Schema = dict[str, Any]

_TEXT: Final[Schema] = {"type": "string"}
_NUMBER: Final[Schema] = {"type": "number"}
_INTEGER: Final[Schema] = {"type": "integer"}
_FLAG: Final[Schema] = {"type": "boolean"}
_OBJECT: Final[Schema] = {"type": "object"}
_TIME: Final[Schema] = {"type": "string", "format": "date-time"}
_PHONE: Final[Schema] = {"type": "string", "description": "a phone number in E.164", "examples": ["+12025550143"]}
_SECONDS: Final[Schema] = {"type": ["number", "null"], "description": "seconds"}
_TAGS: Final[Schema] = {
    "anyOf": [_TEXT, {"type": "array", "items": _TEXT}],
    "description": "comma-separated, or a list",
}


def routes() -> list[Route]:
    body = orjson.dumps(describe())

    async def show(request: Request) -> Response:
        return Response(body, media_type="application/json")

    return [Route(PATH, show, methods=["GET"])]


def describe() -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Voice Gateway",
            "version": metadata.version("voice-gateway"),
            "description": "A self-hosted voice gateway that remembers its callers.",
        },
        "paths": {**_DOCUMENT_PATHS, **_CALL_PATHS, **_PLACING_PATHS, **_ENGINE_PATHS},
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "the admin token"},
                "apiKey": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-API-Key",
                    "description": "the admin token; for documents also REMEM_API_KEY",
                },
                "callToken": {"type": "http", "scheme": "bearer", "description": "the token of one call"},
            },
        },
    }


# Building blocks


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _object(properties: Mapping[str, Schema], *, required: Sequence[str] | None = None) -> Schema:
    """An object whose properties are all required, unless `required` names those that are."""
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(properties if required is None else required),
    }


def _json(schema: Schema) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _operation(
    name: str,
    summary: str,
    responses: Mapping[int, tuple[str, Mapping[str, Any] | None]],
    *,
    errors: Mapping[int, str],
    body: Schema | None = None,
    parameters: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """One operation with the admin token. `responses` map a status to its description and content."""
    answers: dict[str, Any] = {}
    for status, (text, content) in responses.items():
        answers[str(status)] = {"description": text, **({"content": content} if content else {})}
    for status, text in {401: "missing or wrong token", **errors}.items():
        answers[str(status)] = {"description": text, "content": _json(_ref("Error"))}
    return {
        "operationId": name,
        "summary": summary,
        "security": [{"bearer": []}, {"apiKey": []}],
        **({"parameters": list(parameters)} if parameters else {}),
        **({"requestBody": {"required": True, "content": _json(body)}} if body else {}),
        "responses": answers,
    }


def _query(name: str, text: str, schema: Schema = _TEXT) -> dict[str, Any]:
    return {"name": name, "in": "query", "description": text, "schema": schema}


def _path_id(text: str) -> dict[str, Any]:
    return {"name": "id", "in": "path", "required": True, "description": text, "schema": _TEXT}


# Documents

_NEW_DOCUMENT: Final = {
    "title": _TEXT,
    "content": _TEXT,
    "source": {**_TEXT, "default": "api"},
    "source_id": {**_TEXT, "description": "an idempotency key: a second create with it returns the first document"},
    "tags": _TAGS,
    "created_at": _TIME,
    "metadata": _OBJECT,
}
_STORE_ERRORS: Final = {413: "the body is larger than 1 MB", 422: "a field is invalid", 503: "the store is unavailable"}
_MISSING: Final = {404: "no document has this id", 503: "the store is unavailable"}
_DOCUMENT_ID: Final = _path_id("the document's id")

_DOCUMENT_PATHS: Final = {
    "/v1/documents": {
        "post": _operation(
            "createDocument",
            "Store a document",
            {201: ("the document", _json(_ref("Document")))},
            body=_ref("NewDocument"),
            parameters=[{"name": "Idempotency-Key", "in": "header", "description": "like source_id", "schema": _TEXT}],
            errors=_STORE_ERRORS,
        )
    },
    "/v1/documents/ingest": {
        "post": _operation(
            "ingestDocument",
            "Store a document, as clients of Remem's queue do",
            {200: ("stored; it can be found at once", _json(_ref("Ingested")))},
            body=_ref("NewDocument"),
            errors=_STORE_ERRORS,
        )
    },
    "/v1/documents/{id}": {
        "get": _operation(
            "readDocument",
            "Read a document",
            {200: ("the document", _json(_ref("Document")))},
            parameters=[_DOCUMENT_ID],
            errors=_MISSING,
        ),
        "put": _operation(
            "updateDocument",
            "Replace a document's content, or append to it",
            {200: ("the document", _json(_ref("Document")))},
            body=_object(
                {"content": _TEXT, "mode": {"enum": ["replace", "append"], "default": "replace"}, "title": _TEXT},
                required=["content"],
            ),
            parameters=[_DOCUMENT_ID],
            errors={**_MISSING, **_STORE_ERRORS},
        ),
        "delete": _operation(
            "deleteDocument",
            "Delete a document",
            {204: ("deleted", None)},
            parameters=[_DOCUMENT_ID],
            errors=_MISSING,
        ),
    },
    "/v1/query": {
        "post": _operation(
            "queryDocuments",
            "Search documents by words and meaning",
            {200: ("the best matches first", _json(_ref("QueryResults")))},
            body={
                **_object(
                    {
                        "text": _TEXT,
                        "query": {**_TEXT, "description": "another name for text"},
                        "limit": {**_INTEGER, "minimum": 1, "maximum": 100, "default": 10},
                        "tags": _TAGS,
                        "include_facts": _FLAG,
                    },
                    required=[],
                ),
                "anyOf": [{"required": ["text"]}, {"required": ["query"]}],
            },
            errors=_STORE_ERRORS,
        )
    },
}

# Calls

_PERIOD: Final = [
    _query("since", "calls that started at or after this time", _TIME),
    _query("before", "calls that started before this time", _TIME),
]
_FILTERS: Final = [
    _query("caller", "calls from this number", _PHONE),
    _query("agent", "calls with this agent"),
    _query("outcome", "the start of an outcome, or `unfinished`"),
    *_PERIOD,
]
_HISTORY_ERRORS: Final = {422: "a parameter is invalid", 503: "the store is unavailable"}

_CALL_PATHS: Final = {
    "/v1/sessions": {
        "get": _operation(
            "listSessions",
            "List ended calls, newest first",
            {200: ("the calls", _json(_list(_ref("Session"))))},
            parameters=[
                *_FILTERS,
                _query("limit", "at most this many", {**_INTEGER, "minimum": 1, "maximum": 1000, "default": 50}),
                _query("archived", "1: calls older than VOICE_SESSION_ARCHIVE_DAYS", {"enum": ["1"]}),
            ],
            errors=_HISTORY_ERRORS,
        )
    },
    "/v1/sessions/{id}": {
        "get": _operation(
            "readSession",
            "One call in full",
            {200: ("the call", _json(_ref("SessionDetails")))},
            parameters=[_path_id("a session id, or its first characters")],
            errors={404: "no single call matches this id", **_HISTORY_ERRORS},
        )
    },
    "/v1/latency": {
        "get": _operation(
            "readLatency",
            "Response time percentiles per stage",
            {200: ("the percentiles", _json(_ref("Latency")))},
            parameters=_FILTERS,
            errors=_HISTORY_ERRORS,
        )
    },
    "/v1/live": {
        "get": _operation(
            "followCalls",
            "Follow the events of live calls",
            {200: ("server-sent events; the data of each is a JSON object", {"text/event-stream": {"schema": _TEXT}})},
            parameters=[
                _query("session", "only this session; the start of its UUID is enough"),
                _query("caller", "only calls from this number", _PHONE),
                _query("agent", "only calls with this agent"),
                _query("event", "only these events, comma-separated"),
                _query("since", "an ISO 8601 time or an event id: send stored events after it first"),
                _query("levels", "1 adds audio levels", {"enum": ["1"]}),
                {"name": "Last-Event-ID", "in": "header", "description": "continue after this event", "schema": _TEXT},
            ],
            errors={422: "since is invalid"},
        )
    },
}

# Placing calls

_PLACING_PATHS: Final = {
    "/v1/outbound/call": {
        "post": _operation(
            "placeCall",
            "Call a phone number",
            {201: ("the call was placed", _json(_ref("OutboundCall")))},
            body=_object(
                {
                    "to": _PHONE,
                    "from": {**_PHONE, "description": "a number of your carrier account"},
                    "agent": _TEXT,
                    "carrier": {"enum": ["twilio", "telnyx"]},
                    "greeting": {**_TEXT, "maxLength": 500},
                    "context": {
                        "anyOf": [
                            {**_TEXT, "maxLength": 8000},
                            {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}},
                        ],
                        "description": "what the agent should know about this call; becomes part of the prompt",
                    },
                },
                required=["to"],
            )
            | {"additionalProperties": False},
            errors={
                400: "a field is invalid",
                413: "the body is too large",
                502: "the carrier refused the call",
                503: "no carrier is configured, or the gateway is not ready",
            },
        )
    },
    "/v1/phone": {
        "post": _operation(
            "placeSoftphoneCall",
            "Place a call without a carrier",
            {201: ("open the WebSocket at `media_path` with this token", _json(_ref("SoftphoneCall")))},
            body=_ref("CallRequest"),
            errors={400: "a field is invalid", 413: "the body is too large", 503: "calls are not accepted now"},
        )
    },
    "/v1/phone/links": {
        "post": _operation(
            "createGuestLink",
            "Create a link for one call by a guest",
            {201: ("the link", _json(_ref("GuestLink")))},
            body=_ref("CallRequest"),
            errors={400: "a field is invalid", 413: "the body is too large"},
        )
    },
}

# The voice engine

_OPENAI_ERROR: Final = _json(_ref("OpenAiError"))

_ENGINE_PATHS: Final = {
    "/v1/chat/completions": {
        "post": {
            "operationId": "createChatCompletion",
            "summary": "The agent's language model, for the voice engine (compatible with OpenAI)",
            "security": [{"callToken": []}],
            "requestBody": {"required": True, "content": _json(_ref("ChatRequest"))},
            "responses": {
                "200": {
                    "description": "the completion; with `stream`, chunks as server-sent events",
                    "content": {**_json(_ref("ChatCompletion")), "text/event-stream": {"schema": _TEXT}},
                },
                "400": {"description": "the request is invalid", "content": _OPENAI_ERROR},
                "401": {"description": "missing or unknown token", "content": _OPENAI_ERROR},
                "413": {"description": "the body is larger than 2 MB", "content": _OPENAI_ERROR},
            },
        }
    },
}

# Schemas

_SESSION: Final = {
    "session": {**_TEXT, "examples": ["voice-session:7c67f6e4-be3e-4cb1-ab7f-8aa6094b65fd"]},
    "started_at": _TIME,
    "agent": _TEXT,
    "caller": _TEXT,
    "carrier": _TEXT,
    "seconds": _NUMBER,
    "outcome": _TEXT,
    "turns": _INTEGER,
    "told": {**_INTEGER, "description": "memories in the prompt"},
    "archived": _FLAG,
    "document": {**_TEXT, "description": "the id of the summary document"},
    "summary_by": {**_TEXT, "description": "the provider that wrote the summary"},
    "remote": _FLAG,
    "problem": {**_TEXT, "description": "why post-call processing failed"},
    "ending": {**_TEXT, "description": "the state of post-call processing"},
}
_STAGE: Final = {
    "turns": _INTEGER,
    "p50": _SECONDS,
    "p90": _SECONDS,
    "p99": _SECONDS,
    "max": _SECONDS,
    "course": {**_list(_SECONDS), "description": "medians over 24 equal steps of the period"},
}

_SCHEMAS: Final[dict[str, Schema]] = {
    "Error": _object({"detail": _TEXT}),
    "NewDocument": _object(_NEW_DOCUMENT, required=["content"]),
    "Document": _object(
        {
            "id": _TEXT,
            "document_id": _TEXT,
            **dict.fromkeys(("title", "content", "source", "source_id"), _TEXT),
            "tags": _list(_TEXT),
            "created_at": _TIME,
            "updated_at": _TIME,
            "metadata": _OBJECT,
        }
    ),
    "Ingested": _object({"job_id": _TEXT, "message": _TEXT, "document_id": _TEXT}, required=["job_id", "message"]),
    "QueryResults": _object(
        {
            "mode": _TEXT,
            "query": _TEXT,
            "total_chunks": _INTEGER,
            "latency_ms": _INTEGER,
            "results": _list(_ref("QueryResult")),
            "facts": _list(_OBJECT),
        },
        required=["mode", "query", "total_chunks", "latency_ms", "results"],
    ),
    "QueryResult": _object(
        {
            **dict.fromkeys(("id", "document_id", "title", "snippet", "summary", "source"), _TEXT),
            "chunks": _list(_object({"content": _TEXT, "score": _NUMBER})),
            "score": _NUMBER,
            "tags": _list(_TEXT),
            "created_at": _TIME,
            "metadata": _OBJECT,
        }
    ),
    "Session": _object(_SESSION),
    "SessionDetails": _object(
        {
            **_SESSION,
            "summary": {**_TEXT, "description": "the call's document; empty if there is none"},
            "transcript": _list(
                _object(
                    {"speaker": {"enum": ["caller", "agent"]}, "text": _TEXT, "at": _TEXT, "unheard": _TEXT},
                )
            ),
            "timings": _list({"type": "object", "additionalProperties": _SECONDS}),
            "receipt": {**_OBJECT, "description": "the memories in the prompt, with their sources"},
            "steps": {
                "type": "object",
                "description": "the steps of post-call processing, by name",
                "additionalProperties": _object({"state": _TEXT, "at": _TEXT, "reason": _TEXT}),
            },
            "timeline": {**_list(_object({"event": _TEXT, "at": _TIME})), "description": "the call's live events"},
        }
    ),
    "Latency": _object(
        {
            "since": _TIME,
            "before": _TIME,
            "calls": _INTEGER,
            "turns": _INTEGER,
            "stages": {"type": "object", "additionalProperties": _object(_STAGE)},
        }
    ),
    "OutboundCall": _object({"session": _TEXT, "carrier": _TEXT, "call_id": _TEXT, "status": {"enum": ["queued"]}}),
    "CallRequest": _object(
        {
            "caller": {**_PHONE, "description": "empty or omitted: a withheld number"},
            "called": {**_TEXT, "description": "a phone number or an agent's name"},
        },
        required=[],
    ),
    "SoftphoneCall": _object(
        {
            "call_id": _TEXT,
            "account_id": _TEXT,
            "token": {**_TEXT, "description": "opens the media socket once"},
            "token_seconds": _NUMBER,
            "media_path": _TEXT,
            "agent": _TEXT,
            "watch": {**_TEXT, "description": "a token to follow this call"},
        }
    ),
    "GuestLink": _object({"url": {"type": "string", "format": "uri"}, "seconds": _INTEGER}),
    "ChatRequest": _object(
        {"messages": _list(_OBJECT), "model": _TEXT, "stream": _FLAG, "tools": _list(_OBJECT)}, required=["messages"]
    ),
    "ChatCompletion": _object(
        {"id": _TEXT, "object": _TEXT, "created": _INTEGER, "model": _TEXT, "choices": _list(_OBJECT)}
    ),
    "OpenAiError": _object({"error": _object({"message": _TEXT, "type": _TEXT})}),
}
