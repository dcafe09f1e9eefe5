"""A Remem server on loopback: stores documents, supports both API versions, and fails on request."""

import asyncio
import json
import re
import uuid
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

KNOWN_SOURCES = ("api", "quick_capture", "folder_sync", "gmail")


class Fault(Enum):
    """A fault of one request."""

    NONE = auto()  # no fault
    ANSWER_LOST = auto()  # executed, but the connection is closed without an answer
    TOO_MANY_REQUESTS = auto()
    OVERLOADED = auto()
    BROKEN = auto()
    SLOW = auto()
    HTML = auto()  # an HTML page with status 200
    HTML_ERROR = auto()
    HUGE = auto()
    REDIRECT = auto()
    NO_RESULTS_KEY = auto()
    ODD_RESULTS = auto()  # a number in place of the results
    EMPTY_CHUNKS = auto()
    NULL_TITLE = auto()


@dataclass
class Stored:
    id: str
    title: str
    content: str
    source: str
    tags: list[str]
    metadata: dict[str, Any]
    source_id: str
    created_at: str
    visible_at: float
    order: int


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class Response:
    status: int
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def as_json(status: int, body: Any, **headers: str) -> Response:
    return Response(status, json.dumps(body).encode(), {"Content-Type": "application/json"} | headers)


@dataclass
class FakeRemem:
    """
    A true small store behind HTTP. Switches are attributes and can be changed while it runs.

    `face` is the dialect of its paths: `plan` has no ingestion, `current` no create and no update and ignores tags in
    a query, `none` is something else altogether. `shape` is that of its results. `faults` are used up one a request;
    `always` stays.
    """

    face: Literal["plan", "current", "both", "none"] = "both"
    shape: Literal["plan", "current", "both"] = "both"
    api_key: str = "vlt_demo"
    takes_bearer_alone: bool = True
    namespaces: tuple[str, ...] = ("default",)
    honours_idempotency: bool = True
    deletes: bool = False
    """No known client of the maker deletes, so a server may not know how."""
    indexing_delay: float = 0.0
    tags_must_be_text: bool = False
    sources_must_be_known: bool = False
    slowness: float = 60.0
    retry_after: str = "2"
    always: Fault | None = None
    awake: asyncio.Event = field(default_factory=asyncio.Event)
    """Set it to end the delay."""
    faults: deque[Fault] = field(default_factory=deque)
    documents: dict[str, Stored] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    strangers_returned: int = 0  # results without a tag of the query

    _answers: dict[str, Response] = field(default_factory=dict)
    _connections: set[asyncio.Task[None]] = field(default_factory=set)

    async def __aenter__(self) -> "FakeRemem":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in list(self._connections):
            task.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    # For tests

    def fails(self, *faults: Fault) -> None:
        self.faults.extend(faults)

    def documents_of(self, session_id: str) -> int:
        """Number of documents of a session; more than one is a bug."""
        return sum(session_id in (d.source_id, *d.tags) or session_id in d.content for d in self.documents.values())

    def paths(self) -> list[str]:
        return [f"{request.method} {request.path}" for request in self.requests]

    def keeps(self, content: str, *, title: str = "", tags: tuple[str, ...] = (), created_at: str = "") -> str:
        """Add a document without a request."""
        return self._keep({"title": title, "content": content, "tags": list(tags), "created_at": created_at}).id

    # HTTP

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if response := await self._respond(await _read_request(reader)):
                await _write_response(writer, response)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client disconnected
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
            self._connections.discard(task)

    async def _respond(self, request: Request) -> Response | None:
        self.requests.append(request)
        fault = self.faults.popleft() if self.faults else self.always
        if before := self._before(fault):
            return before
        if fault is Fault.SLOW:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.slowness):
                    await self.awake.wait()
        response = self._answer(request)
        return None if fault is Fault.ANSWER_LOST else _spoiled(response, fault)

    def _before(self, fault: Fault | None) -> Response | None:
        """Faults that replace the answer."""
        retry = {"Retry-After": self.retry_after}
        page = {"Content-Type": "text/html"}
        match fault:
            case Fault.TOO_MANY_REQUESTS:
                return as_json(429, {"detail": "slow down"}, **retry)
            case Fault.OVERLOADED:
                return as_json(503, {"detail": "overloaded"}, **retry)
            case Fault.BROKEN:
                return as_json(500, {"detail": "internal error"})
            case Fault.HTML:
                return Response(200, b"<html>Welcome!</html>", page)
            case Fault.HTML_ERROR:
                return Response(502, b"<html>Bad gateway</html>", page)
            case Fault.REDIRECT:
                return Response(307, headers={"Location": f"{self.url}/elsewhere"})
            case _:
                return None

    # The store

    def _answer(self, request: Request) -> Response:
        if problem := self._problem(request):
            return problem
        key = request.headers.get("idempotency-key", "") if self.honours_idempotency else ""
        if request.method == "POST" and request.path.startswith("/v1/documents") and key in self._answers:
            return self._answers[key]
        response = self._route(request)
        if key and response.status < 300:
            self._answers[key] = response
        return response

    def _problem(self, request: Request) -> Response | None:
        given = request.headers.get("x-api-key", "")
        if not given and self.takes_bearer_alone:
            given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if given != self.api_key:
            return as_json(401, {"detail": "bad key"})
        body = request.body if isinstance(request.body, dict) else {}
        asked = [*body.get("namespaces", []), *([body["namespace"]] if "namespace" in body else [])]
        if any(namespace not in (*self.namespaces, "*") for namespace in asked):
            return as_json(403, {"detail": "not your namespace"})
        return None

    def _route(self, request: Request) -> Response:
        match request.method, request.path.split("/")[1:]:
            case _ if self.face == "none":
                return as_json(404, {"detail": "Not Found"})
            case "POST", ["v1", "documents"] if self.face != "current":
                return self._create(request.body)
            case "POST", ["v1", "documents", "ingest"] if self.face != "plan":
                return self._ingest(request.body)
            case "POST", ["v1", "query"]:
                return self._query(request.body)
            case "PUT", ["v1", "documents", id_] if self.face != "current" and id_ in self.documents:
                return self._update(self.documents[id_], request.body)
            case "DELETE", ["v1", "documents", id_] if self.deletes and id_ in self.documents:
                del self.documents[id_]
                return Response(204)
            case "GET", ["v1", "documents", id_] if id_ in self.documents:
                return as_json(200, self._whole(self.documents[id_]))
            case (("POST" | "PUT"), ["v1", "documents", *_]) if self.face == "current":
                return as_json(405, {"detail": "Method Not Allowed"})
            case _:
                return as_json(404, {"detail": "Not Found"})

    def _create(self, body: dict[str, Any]) -> Response:
        if self.tags_must_be_text and not isinstance(body.get("tags", ""), str):
            return as_json(422, {"detail": "tags: must be a string"})
        if self._is_unknown_source(body):
            return as_json(422, {"detail": "source: unknown"})
        return as_json(201, {"id": self._keep(body).id})

    def _ingest(self, body: dict[str, Any]) -> Response:
        if self._is_unknown_source(body):
            return as_json(422, {"detail": "source: unknown"})
        stored = self._keep(body)
        answer = {"job_id": str(uuid.uuid4()), "message": "queued"}
        return as_json(202, answer | ({"document_id": stored.id} if body.get("return_id") else {}))

    def _is_unknown_source(self, body: dict[str, Any]) -> bool:
        return self.sources_must_be_known and body.get("source", "api") not in KNOWN_SOURCES

    def _keep(self, body: dict[str, Any]) -> Stored:
        metadata = body.get("metadata", {})
        tags = body.get("tags") or metadata.get("tags", [])
        stored = Stored(
            id=str(uuid.uuid4()),
            title=body.get("title", ""),
            content=body["content"],
            source=body.get("source", "api"),
            tags=[tag.strip() for tag in tags.split(",")] if isinstance(tags, str) else tags,
            metadata=metadata,
            source_id=body.get("source_id", ""),
            created_at=body.get("created_at", ""),
            visible_at=asyncio.get_running_loop().time() + self.indexing_delay,
            order=len(self.documents),
        )
        self.documents[stored.id] = stored
        return stored

    def _update(self, stored: Stored, body: dict[str, Any]) -> Response:
        appends = body.get("mode") == "append"
        stored.content = f"{stored.content}\n{body['content']}" if appends else body["content"]
        return as_json(200, {"id": stored.id})

    def _query(self, body: dict[str, Any]) -> Response:
        text_key, limit_key = ("query", "max_results") if self.face == "current" else ("text", "limit")
        if text_key not in body:
            return as_json(422, {"detail": f"{text_key}: field required"})
        asked = set(body.get("tags", []))
        found = self._found(body[text_key], asked if self.face != "current" else set())[: body.get(limit_key, 10)]
        self.strangers_returned += sum(not asked <= set(stored.tags) for stored, _ in found)
        return as_json(200, {"results": [self._result(stored, score) for stored, score in found]})

    def _found(self, text: str, tags: set[str]) -> list[tuple[Stored, float]]:
        """Ranked by common words, then newest first: like a semantic store it always has results."""
        now, wanted = asyncio.get_running_loop().time(), _words(text)
        visible = [d for d in self.documents.values() if d.visible_at <= now and tags <= set(d.tags)]
        scored = [(d, len(wanted & _words(f"{d.title} {d.content}"))) for d in visible]
        scored.sort(key=lambda pair: (-pair[1], -pair[0].order))
        return [(d, 0.01 + 0.02 * common / max(len(wanted), 1)) for d, common in scored]

    def _result(self, stored: Stored, score: float) -> dict[str, Any]:
        text = stored.content[:500]
        plan = {"title": stored.title, "snippet": text}
        current = {
            "document_id": stored.id,
            "title": stored.title,
            "chunks": [{"content": text, "score": score}],
        }
        own = {"id": stored.id, "tags": stored.tags, "source": stored.source, "created_at": stored.created_at}
        return {"plan": plan, "current": current, "both": plan | current | own}[self.shape]

    def _whole(self, stored: Stored) -> dict[str, Any]:
        current = {"document_id": stored.id, "content": stored.content, "source": stored.source}
        if self.shape == "current":
            return current
        return current | {"id": stored.id, "title": stored.title, "tags": stored.tags, "created_at": stored.created_at}


def _words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower()))


def _spoiled(response: Response, fault: Fault | None) -> Response:
    """Apply a fault to a good answer."""
    if fault is Fault.HUGE:
        return as_json(response.status, {"results": [], "padding": "x" * 2_000_000})
    if fault not in (Fault.NO_RESULTS_KEY, Fault.ODD_RESULTS, Fault.EMPTY_CHUNKS, Fault.NULL_TITLE):
        return response
    body = json.loads(response.body)
    if fault is Fault.ODD_RESULTS:
        return as_json(response.status, body | {"results": 2})
    if fault is Fault.NO_RESULTS_KEY:
        body.pop("results", None)
    for result in body.get("results", []):
        result |= {"title": None} if fault is Fault.NULL_TITLE else {"chunks": []}
    return as_json(response.status, body)


async def _read_request(reader: asyncio.StreamReader) -> Request:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    request_line, *lines = head.strip().split("\r\n")
    method, path, _ = request_line.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    content = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, json.loads(content) if content else None)


async def _write_response(writer: asyncio.StreamWriter, response: Response) -> None:
    headers = response.headers | {"Content-Length": str(len(response.body)), "Connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"HTTP/1.1 {response.status} X\r\n{lines}\r\n".encode() + response.body)
    await writer.drain()
