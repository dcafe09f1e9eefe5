"""Calls that are over, and how long answers took, as JSON for whoever has the admin token."""

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

MOST_CALLS: Final = 1000

Answer = Callable[[Request], Awaitable[Response]]


def routes(room: CallHistory, token: Secret) -> list[Route]:
    async def listed(request: Request) -> Response:
        limit = request.query_params.get("limit", "50")
        if not limit.isdecimal() or not 0 < int(limit) <= MOST_CALLS:
            return _problem(422, f"limit must be a number from 1 to {MOST_CALLS}")
        return JSONResponse(await room.calls(_wanted(request), limit=int(limit)))

    async def shown(request: Request) -> Response:
        call = await room.call(request.path_params["id"])
        return JSONResponse(call) if call is not None else _problem(404, "no such call, or several begin so")

    async def latency(request: Request) -> Response:
        return JSONResponse(await room.latency(_wanted(request)))

    answers = {"/v1/sessions": listed, "/v1/sessions/{id}": shown, "/v1/latency": latency}
    return [Route(path, _guarded(answer, token), methods=["GET"]) for path, answer in answers.items()]


def _wanted(request: Request) -> CallFilter:
    """ValueError for what is no moment."""
    query = request.query_params
    given = {name: query.get(name, "") for name in ("caller", "agent", "outcome")}
    return CallFilter(**given, since=_moment(query.get("since", "")), before=_moment(query.get("before", "")))


def _moment(text: str) -> str:
    """As the book has it. A plus sign in a query is a space; without a zone it is the time here."""
    return datetime.fromisoformat(text.replace(" ", "+")).astimezone(UTC).isoformat() if text else ""


def _guarded(answer: Answer, token: Secret) -> Answer:
    async def guarded(request: Request) -> Response:
        if not is_authorized(request.headers, [token]):
            return _problem(401, "missing or wrong admin token", {"WWW-Authenticate": "Bearer"})
        try:
            response = await answer(request)
        except StoreUnavailable:
            return _problem(503, "the store is not available")
        except (ValueError, OverflowError):
            return _problem(422, "since and before are moments like 2026-02-06T23:15:00+00:00")
        response.headers["Cache-Control"] = "no-store"
        return response

    return guarded


def _problem(status: int, detail: str, headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"detail": detail}, status, headers)
