"""Ended calls and latency percentiles as JSON, with the admin token."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Final

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gateway.errors import StoreUnavailable
from gateway.history.queries import CallFilter, CallHistory
from gateway.settings import Secret
from gateway.web.auth import is_authorized

MAX_CALLS: Final = 1000

Handler = Callable[[Request], Awaitable[Response]]


def routes(history: CallHistory, admin_token: Secret) -> list[Route]:
    async def list_calls(request: Request) -> Response:
        limit = request.query_params.get("limit", "50")
        if not limit.isdecimal() or not 0 < int(limit) <= MAX_CALLS:
            return _error(422, f"limit must be a number from 1 to {MAX_CALLS}")
        archived = request.query_params.get("archived") == "1"
        return JSONResponse(await history.calls(_filter(request), limit=int(limit), archived=archived))

    async def show_call(request: Request) -> Response:
        call = await history.call(request.path_params["id"])
        return JSONResponse(call) if call is not None else _error(404, "no single call matches this id")

    async def show_latency(request: Request) -> Response:
        return JSONResponse(await history.latency(_filter(request)))

    handlers: dict[str, Handler] = {
        "/v1/sessions": list_calls,
        "/v1/sessions/{id}": show_call,
        "/v1/latency": show_latency,
    }
    return [Route(path, _guarded(handle, admin_token), methods=["GET"]) for path, handle in handlers.items()]


def _filter(request: Request) -> CallFilter:
    """Raises ValueError for an invalid time."""
    query = request.query_params
    given = {name: query.get(name, "") for name in ("caller", "agent", "outcome")}
    return CallFilter(**given, since=_utc(query.get("since", "")), before=_utc(query.get("before", "")))


def _utc(text: str) -> str:
    """ISO text in UTC, as stored. A plus sign in a query arrives as a space; without a zone it is local time."""
    return datetime.fromisoformat(text.replace(" ", "+")).astimezone(UTC).isoformat() if text else ""


def _guarded(handle: Handler, token: Secret) -> Handler:
    async def guarded(request: Request) -> Response:
        if not is_authorized(request.headers, [token]):
            return _error(401, "missing or wrong admin token", {"WWW-Authenticate": "Bearer"})
        try:
            response = await handle(request)
        except StoreUnavailable:
            return _error(503, "the store is unavailable")
        except (ValueError, OverflowError):
            return _error(422, "since and before must be times like 2026-02-06T23:15:00+00:00")
        response.headers["Cache-Control"] = "no-store"
        return response

    return guarded


def _error(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"detail": detail}, status, headers)
