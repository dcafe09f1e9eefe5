"""
The agent's text side: who does what the agent hands over in a call.

Handing over takes no time of the call's. It is tried a few times, also when the call has ended meanwhile; the log
tells when it was in vain.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Final, Literal, Protocol

import httpx

from gateway.errors import LlmError
from gateway.llm.openclaw import OpenClawUpstream

PAUSES: Final = (1.0, 5.0, 25.0)
WEBHOOK_SECONDS: Final = 15.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DelegatedTask:
    """What the agent hands over, and in whose name."""

    kind: Literal["task", "message"]
    agent: str
    caller: str
    text: str = field(default="", repr=False)


class DelegationFailed(Exception):
    """It could not be handed over this time."""


class Delegate(Protocol):
    """Takes one piece of work. Raises Undelivered."""

    async def __call__(self, errand: DelegatedTask) -> None: ...


class Delegator:
    """Hands work over in the background. One for all calls; `close` waits a moment for what is under way."""

    def __init__(self, pauses: Sequence[float] = PAUSES) -> None:
        self._pauses = pauses
        self._tasks: set[asyncio.Task[None]] = set()

    def hand_over(self, to: Delegate, errand: DelegatedTask) -> None:
        task = asyncio.get_running_loop().create_task(self._deliver(to, errand), name="errand")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        for task in self._tasks:
            task.cancel()

    async def _deliver(self, to: Delegate, errand: DelegatedTask) -> None:
        fields = {"agent": errand.agent, "kind": errand.kind}
        for pause in (*self._pauses, None):
            try:
                await to(errand)
                _log.info("handed over to the text side", extra=fields)
                return
            except DelegationFailed as error:
                if pause is None:
                    _log.error("could not be handed over", extra=fields | {"reason": str(error)})
                else:
                    await asyncio.sleep(pause)


class Webhook:
    """Posts the work to an address of the owner's."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url

    async def __call__(self, errand: DelegatedTask) -> None:
        try:
            answer = await self._http.post(self._url, json=asdict(errand), timeout=WEBHOOK_SECONDS)
        except httpx.HTTPError as error:
            raise DelegationFailed(type(error).__name__) from None
        if answer.status_code >= 300:
            raise DelegationFailed(f"status {answer.status_code}")


class OpenClawAgent:
    """Gives the work to an OpenClaw agent, in the caller's own session there. What it answers is its own business."""

    def __init__(self, upstream: OpenClawUpstream, caller_key: str) -> None:
        self._upstream = upstream
        self._caller_key = caller_key

    async def __call__(self, errand: DelegatedTask) -> None:
        try:
            await self._upstream.hand_over(f"A {errand.kind} from a phone call: {errand.text}", self._caller_key)
        except LlmError as error:
            raise DelegationFailed(str(error)) from None
