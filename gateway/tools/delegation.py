"""
Delegation of work to a text agent or a webhook.

Delivery runs in the background, with retries, and continues after the call. The log reports a task that could not be
delivered.
"""

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Final, Literal, Protocol

import httpx

from gateway.errors import LlmError

if TYPE_CHECKING:  # it imports aiohttp, which takes a tenth of a second at the start
    from gateway.llm.openclaw import OpenClawUpstream

PAUSES: Final = (1.0, 5.0, 25.0)
WEBHOOK_SECONDS: Final = 15.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DelegatedTask:
    """A task or message from the agent of a call."""

    kind: Literal["task", "message"]
    agent: str
    caller: str
    text: str = field(default="", repr=False)


class DelegationFailed(Exception):
    """Delivery failed; it will be retried."""


class Delegate(Protocol):
    """Delivers one task. Raises DelegationFailed."""

    async def __call__(self, task: DelegatedTask) -> None: ...


class Delegator:
    """Delivers the tasks of all calls in the background. `close` waits briefly for deliveries in progress."""

    def __init__(self, pauses: Sequence[float] = PAUSES) -> None:
        self._pauses = pauses
        self._deliveries: set[asyncio.Task[None]] = set()

    def hand_over(self, to: Delegate, task: DelegatedTask) -> None:
        delivery = asyncio.get_running_loop().create_task(self._deliver(to, task), name="delegation")
        self._deliveries.add(delivery)
        delivery.add_done_callback(self._deliveries.discard)

    async def close(self) -> None:
        if self._deliveries:
            await asyncio.wait(self._deliveries, timeout=5)
        for delivery in self._deliveries:
            delivery.cancel()

    async def _deliver(self, to: Delegate, task: DelegatedTask) -> None:
        fields = {"agent": task.agent, "kind": task.kind}
        for pause in (*self._pauses, None):
            try:
                await to(task)
                _log.info("task delegated", extra=fields)
                return
            except DelegationFailed as error:
                if pause is None:
                    _log.error("task could not be delegated", extra=fields | {"reason": str(error)})
                else:
                    await asyncio.sleep(pause)


class Webhook:
    """Posts tasks to the configured URL."""

    def __init__(self, http: httpx.AsyncClient, url: str) -> None:
        self._http = http
        self._url = url

    async def __call__(self, task: DelegatedTask) -> None:
        try:
            answer = await self._http.post(self._url, json=asdict(task), timeout=WEBHOOK_SECONDS)
        except httpx.HTTPError as error:
            raise DelegationFailed(type(error).__name__) from None
        if answer.status_code >= 300:
            raise DelegationFailed(f"status {answer.status_code}")


class OpenClawAgent:
    """Sends tasks to an OpenClaw agent, in the caller's session there. Its answer is ignored."""

    def __init__(self, upstream: "OpenClawUpstream", caller_key: str) -> None:
        self._upstream = upstream
        self._caller_key = caller_key

    async def __call__(self, task: DelegatedTask) -> None:
        try:
            await self._upstream.hand_over(f"A {task.kind} from a phone call: {task.text}", self._caller_key)
        except LlmError as error:
            raise DelegationFailed(str(error)) from None
