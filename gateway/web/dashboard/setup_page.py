"""The set-up checklist: engine, public address, phone number, first call. An empty system starts with it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

import gateway
from gateway.diagnostics.checklist import SetupChecklist
from gateway.history.calls_table import CallRowFilter, CallsTable
from gateway.invocation import command
from gateway.memory.stores.store import MemoryStore
from gateway.web.login import LoginGuard
from gateway.web.login_sessions import LoginSession

PATIENCE: Final = 10.0
"""How long a request of the script waits for checks. A page waits for none."""
DOCS: Final = ("engines", "getting-started", "telnyx", "twilio")
"""The pages of the documentation that the steps refer to; pyproject.toml puts them into the wheel."""


class SetupPage:
    def __init__(self, guard: LoginGuard, store: MemoryStore, checklist: SetupChecklist, local_url: str) -> None:
        self._guard = guard
        self._rows = CallsTable(store)
        self._checklist = checklist
        self._local_url = local_url

    def routes(self) -> list[Route]:
        guard = self._guard
        return [
            Route("/setup", guard.page(self._show)),
            Route("/setup/steps", guard.file(self._show_steps)),
            Route("/setup/docs/{name}.md", guard.file(self._show_docs)),
        ]

    async def content(self, *, patience: float = 0) -> Mapping[str, Any]:
        """Values for the template of the steps."""
        newest = await self._rows.page(CallRowFilter(), limit=1)
        steps = await self._checklist.steps(bool(newest), patience=patience)
        return {
            "steps": steps,
            "done": sum(step.state == "done" for step in steps),
            "newest": newest[0] if newest else None,
            "command": command,
            "local_url": self._local_url,
        }

    async def _show(self, request: Request, session: LoginSession) -> Response:
        # Without a script, a link on the page asks for the results.
        patience = PATIENCE if "wait" in request.query_params else 0
        return await self._guard.html("setup.html", session, here="", setup=await self.content(patience=patience))

    async def _show_steps(self, request: Request, session: LoginSession) -> Response:
        return await self._guard.html("setup_steps.html", session, setup=await self.content(patience=PATIENCE))

    async def _show_docs(self, request: Request, session: LoginSession) -> Response:
        name, package = request.path_params["name"], Path(gateway.__file__).parent
        for folder in (package, package.parent):  # of the wheel, of the repository
            if name in DOCS and (path := folder / "docs" / f"{name}.md").is_file():
                return PlainTextResponse(path.read_text(encoding="utf-8"))
        raise HTTPException(404, "Page not found. The documentation is in the folder docs of the repository.")
