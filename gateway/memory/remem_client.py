"""
A client for Remem, or for any store that speaks one of its dialects.

The dialect is detected: a create as planned first, ingestion if the server does not know that. Responses are parsed
liberally, and never trusted to belong to the requested caller.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final
from urllib.parse import quote

import httpx
import orjson

from gateway.errors import StoreError, StoreRefused, StoreUnavailable, connection_problem
from gateway.memory.stores.documents import Document, NewDocument, parse_tags, parse_time
from gateway.memory.summary_parser import belongs_to
from gateway.settings import Secret

IN_CALL: Final = 1.5
AFTER_CALL: Final = 10.0

_MAX_ANSWER_BYTES: Final = 1_000_000
_TURNED_AWAY: Final = (408, 425, 429, 503)  # sent before any work was done
_MOST_ASKED: Final = 100
_MOST_READ: Final = 10  # documents fetched in full to find their owner
_TITLE_TIME: Final = re.compile(r"\d{4}-\d\d-\d\d \d{1,2}:\d\d [AP]M")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


def connect_remem(url: str, api_key: Secret | None, http: httpx.AsyncClient) -> "RememClient | None":
    """A client of REMEM_API_URL; None where it is not set."""
    return RememClient(url, api_key or Secret(""), http) if url else None


class _NotOffered(StoreRefused):
    """The server has no such document, or does not serve this kind of request."""


class RememClient:
    """
    Another store, reached over HTTP.

    Every method takes a limit on its whole duration, in seconds. After StoreUnavailable a retry may succeed;
    `answer_lost` means that a write may have been carried out: call `find_by_session` before repeating it. That holds
    for any failure after the request was sent, and for every 5xx except 503, which like 429 rejects a request unread.
    StoreRefused is final.
    """

    def __init__(self, base_url: str, api_key: Secret, http: httpx.AsyncClient) -> None:
        self._base_url = base_url.rstrip("/").removesuffix("/v1")
        self._api_key = api_key
        self._http = http
        self._ingests = False

    # Writing

    async def store(self, new: NewDocument, *, timeout: float = AFTER_CALL) -> str:
        """Create the document. Returns its id, or an empty text if the server sends none."""
        async with _translated_errors(timeout, writes=True):
            return _id(await self._create(new))

    async def replace(self, document_id: str, new: NewDocument, *, timeout: float = AFTER_CALL) -> str:
        """Replace the document. Returns its id."""
        # A server without updates keeps the old text: creating the document again could make a second one.
        if not document_id or self._ingests:
            return document_id
        async with _translated_errors(timeout, writes=True):
            try:
                body = {"content": new.content, "mode": "replace"}
                return _id(await self._ask("PUT", _path_of(document_id), body, writes=True)) or document_id
            except _NotOffered:
                return document_id

    async def delete(self, document_id: str, *, timeout: float = AFTER_CALL) -> bool:
        """Delete the document. Returns false if it does not exist, or the server does not support deletion."""
        async with _translated_errors(timeout, writes=True):
            try:
                await self._ask("DELETE", _path_of(document_id), writes=True)
            except _NotOffered:
                return False
        return True

    async def _create(self, new: NewDocument) -> Any:
        metadata: dict[str, Any] = new.metadata | {"tags": list(new.tags)}
        planned: dict[str, Any] = {"tags": ", ".join(new.tags)}
        if new.created_at:
            metadata["started_at"] = planned["created_at"] = new.created_at.isoformat()
        body: dict[str, Any] = {"title": new.title, "content": new.content, "source": new.source}
        body |= {"source_id": new.source_id, "metadata": metadata}
        if not self._ingests:
            with suppress(_NotOffered):
                return await self._post_document("/v1/documents", body | planned)
        answer = await self._post_document("/v1/documents/ingest", body | {"return_id": True})
        self._ingests = True
        return answer

    async def _post_document(self, path: str, body: dict[str, Any]) -> Any:
        key = body["source_id"]
        try:
            return await self._ask("POST", path, body, key=key, writes=True)
        except StoreRefused as refused:
            if refused.status != 422 or body["source"] == "api":
                raise
        # Remem accepts only known sources; ours may not be among them.
        metadata = body["metadata"] | {"source": body["source"]}
        return await self._ask("POST", path, body | {"source": "api", "metadata": metadata}, key=key, writes=True)

    # Reading

    async def find_by_session(self, session_id: str, *, timeout: float = AFTER_CALL) -> str | None:
        """The id of the session's document, empty if the server sends none; None if there is no document."""
        async with _translated_errors(timeout, writes=False):
            found = await self._query(session_id, limit=_MOST_READ)
            if found is None:
                raise StoreUnavailable("remem answered a query without results")
            certain = [document for document in found if _is_of_session(document, session_id)]
            if not certain:
                whole = await asyncio.gather(*(self._whole(document) for document in found))
                certain = [document for document in whole if _is_of_session(document, session_id)]
        return certain[0].id if certain else None

    async def past_calls(self, agent: str, caller: str, limit: int, *, timeout: float = IN_CALL) -> list[Document]:
        """The last calls of this caller with this agent, newest first; only those that certainly belong to both."""
        deadline = asyncio.get_running_loop().time() + timeout
        async with _translated_errors(timeout, writes=False):
            found = await self._query(
                f"voice call summary caller {caller} agent {agent}",
                limit=min(limit * 10, _MOST_ASKED),
                tags=("voice-session", f"agent:{agent}", f"caller:{caller}"),
            )
        ours = [document for document in found or () if belongs_to(document, agent, caller)]
        unknown = [document for document in found or () if belongs_to(document, agent, caller) is None]
        wanted = sorted(ours, key=_age)[:limit] + unknown[:_MOST_READ]
        whole = await asyncio.gather(*(self._whole(document, until=deadline) for document in wanted))
        return sorted((document for document in whole if belongs_to(document, agent, caller)), key=_age)[:limit]

    async def _query(self, text: str, *, limit: int, tags: tuple[str, ...] = ()) -> list[Document] | None:
        """The results; None for an answer without a list of them."""
        # The parameter names of all dialects: with unknown names alone the server would use its defaults.
        limits = {"limit": limit, "max_results": limit, "maxResults": limit, "minScore": 0}
        body: dict[str, Any] = {"text": text, "query": text, **limits, "mode": "fast"}
        if tags:
            body["tags"] = list(tags)
        answer = await self._ask("POST", "/v1/query", body)
        results = answer.get("results") if isinstance(answer, dict) else None
        if not isinstance(results, list):
            return None
        return [_document(result) for result in results if isinstance(result, dict)]

    async def _whole(self, document: Document, *, until: float | None = None) -> Document:
        """The document with its full text, or unchanged if that can't be fetched in time."""
        if not document.id:
            return document
        try:
            async with asyncio.timeout_at(until):
                answer = await self._ask("GET", _path_of(document.id))
        except (StoreError, httpx.HTTPError, TimeoutError):
            return document
        if not isinstance(answer, dict):
            return document
        full = _document(answer)
        return replace(
            document,
            title=full.title or document.title,
            content=_text(answer.get("content")) or document.content,
            tags=full.tags or document.tags,
            created_at=full.created_at if full.created_at != _EPOCH else document.created_at,
            source_id=full.source_id or document.source_id,
        )

    # HTTP

    async def _ask(self, method: str, path: str, body: Any = None, *, key: str = "", writes: bool = False) -> Any:
        """Send a request. Returns the JSON of the answer, None without a body."""
        headers = {"X-API-Key": self._api_key.reveal()} | ({"Idempotency-Key": key} if key else {})
        content = None if body is None else orjson.dumps(body)
        if content is not None:
            headers["Content-Type"] = "application/json"
        url, answer = self._base_url + path, bytearray()
        request = self._http.build_request(method, url, content=content, headers=headers, timeout=None)
        # Following a redirect would send the key to its target.
        response = await self._http.send(request, stream=True, follow_redirects=False)
        try:
            status = response.status_code
            if status in _TURNED_AWAY or status >= 500:
                lost, wait = writes and status not in _TURNED_AWAY, _retry_after(response.headers)
                raise StoreUnavailable(f"remem answered {status}", answer_lost=lost, retry_after=wait)
            if not response.is_success:
                refused = _NotOffered if status in (404, 405) else StoreRefused
                raise refused(f"remem answered {status}", status=status)
            async for chunk in response.aiter_bytes():
                answer += chunk
                if len(answer) > _MAX_ANSWER_BYTES:
                    raise StoreUnavailable("remem answered with more than 1 MB", answer_lost=writes)
            return orjson.loads(answer) if answer else None
        except orjson.JSONDecodeError:
            raise StoreUnavailable("remem answered with something other than JSON", answer_lost=writes) from None
        finally:
            await response.aclose()


class NoRemem:
    """Stands for a remote store where none is set up."""

    async def past_calls(self, agent: str, caller: str, limit: int, *, timeout: float = IN_CALL) -> list[Document]:
        return []


# Errors of httpx become ours, here and nowhere else


@asynccontextmanager
async def _translated_errors(timeout: float, *, writes: bool) -> AsyncIterator[None]:
    # `from None`: the message of an httpx error may quote a header.
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError:
        raise StoreUnavailable("remem did not answer in time", answer_lost=writes) from None
    except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as error:
        raise StoreUnavailable(f"remem can't be reached: {connection_problem(error)}") from None
    except httpx.HTTPError as error:
        raise StoreUnavailable(f"remem was lost: {type(error).__name__}", answer_lost=writes) from None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait, from a number or an HTTP date (RFC 9110, 10.2.3)."""
    text = headers.get("Retry-After", "").strip()
    if text.isdecimal():
        return float(text)
    try:
        wait = parsedate_to_datetime(text) - datetime.now(UTC)
    except (ValueError, TypeError):
        return None
    return max(wait.total_seconds(), 0.0)


# Bodies


def _path_of(document_id: str) -> str:
    return f"/v1/documents/{quote(document_id, safe='')}"


def _id(answer: Any) -> str:
    known = answer if isinstance(answer, dict) else {}
    return _text(known.get("id")) or _text(known.get("document_id"))


def _document(result: dict[str, Any]) -> Document:
    """A query result of any dialect."""
    metadata = result["metadata"] if isinstance(result.get("metadata"), dict) else {}
    title = _text(result.get("title"))
    times = (_time(metadata.get("started_at")), _time(result.get("created_at")), _time_in_title(title))
    created_at = next((time for time in times if time), _EPOCH)
    chunks = result.get("chunks")
    chunk = chunks[0] if isinstance(chunks, list) and chunks and isinstance(chunks[0], dict) else {}
    texts = (result.get("snippet"), chunk.get("content"), result.get("summary"), result.get("content"))
    return Document(
        id=_id(result),
        title=title,
        content=next(filter(None, map(_text, texts)), ""),
        source=_text(result.get("source")),
        tags=_tags(result.get("tags")) or _tags(metadata.get("tags")),
        created_at=created_at,
        updated_at=_time(result.get("updated_at")) or created_at,
        metadata=metadata,
        source_id=_text(result.get("source_id")) or _text(metadata.get("source_id")),
    )


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _tags(value: Any) -> tuple[str, ...]:
    try:
        return parse_tags(value)
    except ValueError:
        return ()


def _time(value: Any) -> datetime | None:
    try:
        return parse_time(value) if isinstance(value, str) else None
    except ValueError:
        return None


def _time_in_title(title: str) -> datetime | None:
    """The start of the call, to the minute: the only date that some stores keep."""
    match = _TITLE_TIME.search(title)
    try:
        return datetime.strptime(match[0], "%Y-%m-%d %I:%M %p").replace(tzinfo=UTC) if match else None
    except ValueError:
        return None


def _age(document: Document) -> float:
    return -document.created_at.timestamp()


def _is_of_session(document: Document, session_id: str) -> bool:
    return (
        session_id in (document.source_id, document.metadata.get("session_id"), *document.tags)
        or session_id in document.title
        or session_id in document.content
    )
