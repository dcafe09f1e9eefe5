"""The page of how the gateway does. `/health` is the machines'; this one is for people."""

import asyncio
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.dashboard import vitals
from gateway.dashboard.visitors import Visit
from gateway.finalization.job_table import JobTable
from gateway.history.call_rows import CallRows
from gateway.memory.open_stores import Stores
from gateway.web.pages.entrance import Entrance

_MOST_WAITING = 20


class VitalPages:
    """`state` is what `/health` tells."""

    def __init__(self, entrance: Entrance, stores: Stores, state: Callable[[], dict[str, Any]]) -> None:
        self._entrance = entrance
        self._room = vitals.VitalRoom(CallRows(stores.memory))
        self._endings = JobTable(stores.local)
        self._state = state

    def routes(self) -> list[Route]:
        return [Route("/vitals", self._entrance.page(self._show))]

    async def _show(self, request: Request, visit: Visit) -> Response:
        period = vitals.PERIODS.get(request.query_params.get("period", ""), vitals.PERIODS["week"])
        figures = await self._room.of(period)
        calls, latency = await asyncio.to_thread(lambda: (vitals.calls_plot(figures), vitals.latency_plot(figures)))
        return await self._entrance.html(
            "vitals.html",
            visit,
            here="vitals",
            figures=figures,
            periods=vitals.PERIODS.values(),
            calls_plot=calls,
            latency_plot=latency,
            share_bar=vitals.share_bar,
            trouble=vitals.TROUBLE,
            state=self._state(),
            waiting=await self._endings.waiting(_MOST_WAITING),
        )
