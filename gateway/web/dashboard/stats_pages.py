"""The page of how the gateway does. `/health` is the machines'; this one is for people."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.finalization.job_table import JobTable
from gateway.history.calls_table import CallsTable
from gateway.history.stores import Stores
from gateway.web.dashboard import stats
from gateway.web.login import LoginGuard
from gateway.web.login_sessions import LoginSession

_MOST_WAITING = 20


class StatsPages:
    """`state` is what `/health` tells."""

    def __init__(self, entrance: LoginGuard, stores: Stores, state: Callable[[], dict[str, Any]]) -> None:
        self._entrance = entrance
        self._room = stats.StatsQuery(CallsTable(stores.memory))
        self._jobs = JobTable(stores.local)
        self._state = state

    def routes(self) -> list[Route]:
        return [Route("/vitals", self._entrance.page(self._show))]

    async def _show(self, request: Request, visit: LoginSession) -> Response:
        period = stats.PERIODS.get(request.query_params.get("period", ""), stats.PERIODS["week"])
        figures = await self._room.of(period)
        calls, latency = await asyncio.to_thread(lambda: (stats.calls_plot(figures), stats.latency_plot(figures)))
        return await self._entrance.html(
            "vitals.html",
            visit,
            here="vitals",
            figures=figures,
            periods=stats.PERIODS.values(),
            calls_plot=calls,
            latency_plot=latency,
            share_bar=stats.share_bar,
            trouble=stats.TROUBLE,
            state=self._state(),
            waiting=await self._jobs.waiting(_MOST_WAITING),
        )
