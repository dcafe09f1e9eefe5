"""The end of a call: by the first reason that comes, at once or after the agent's goodbye."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from gateway.calls.speech_output import Say, SpeechOutput
from gateway.errors import CarrierRefused, NumberNotAllowed
from gateway.history.live_events import CallEvents
from gateway.session import EndReason
from gateway.telephony.phone_numbers import e164
from gateway.telephony.rest import CallControl

NOT_TRANSFERRED: Final = "I'm sorry, I could not put you through."
TIME_IS_UP: Final = "I'm sorry, this call has reached its time limit, so I have to hang up now. Goodbye."

MAY_GO_ON: Final = (EndReason.STREAM_LOST, EndReason.STREAM_STOPPED, EndReason.TRANSFERRED)
"""Only the media stream has ended: the caller may still be there, or come back from a failed transfer."""


@dataclass(frozen=True)
class CallLeg:
    """One call at its carrier. `is_ours`: whether no other node has it by now. Methods raise CarrierRefused."""

    control: CallControl
    call_id: str
    called: str
    media_url: str
    is_ours: Callable[[], Awaitable[bool]]

    async def hang_up(self) -> None:
        if await self.is_ours():
            await self.control.hang_up(self.call_id)

    async def transfer(self, target: str) -> None:
        """
        Connect the caller to a number or SIP address; the media stream ends.

        From the number that was dialled: a carrier takes no other of ours, and the caller's is not ours to show.
        Raises NumberNotAllowed, too.
        """
        caller_id = e164(self.called) or ""
        await self.control.transfer(self.call_id, target, caller_id=caller_id, media_url=self.media_url)


class CallEnd:
    """
    Ends one call, once.

    A request of the agent to hang up or to transfer waits for its goodbye. The agent may withdraw the request; the
    caller cancels it, once, by talking on.
    """

    def __init__(
        self,
        tasks: asyncio.TaskGroup,
        leg: CallLeg,
        speech: SpeechOutput,
        say: Say,
        events: CallEvents,
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self.at: datetime | None = None
        self._first_reason: EndReason | None = None
        self._over = asyncio.Event()
        self._tasks = tasks
        self._leg = leg
        self._speech = speech
        self._say = say
        self._events = events
        self._log = log
        self._carrier_over = False
        self._transferring = False
        self._goodbye: asyncio.Task[None] | None = None
        self._request = ""
        self._requests = 0

    @property
    def is_over(self) -> bool:
        return self._first_reason is not None

    async def wait(self) -> None:
        await self._over.wait()

    @property
    def reason(self) -> EndReason:
        """The reason as known now: the end of the stream may turn out to be the caller's hangup."""
        if self._carrier_over and self._first_reason in (EndReason.STREAM_LOST, EndReason.STREAM_STOPPED):
            return EndReason.CALLER_HUNG_UP
        return self._first_reason or EndReason.FAILED

    def end(self, reason: EndReason, *, carrier_over: bool = False) -> None:
        """End the call at once; only the first reason counts. `carrier_over`: the carrier has ended it already."""
        self._carrier_over |= carrier_over
        if self._first_reason is None:
            self._first_reason = reason
            self._speech.close()
            self.at = datetime.now(UTC)
            self._over.set()

    def stream_stopped(self) -> None:
        """The carrier has closed the media stream in an orderly way."""
        if self._transferring:
            self.end(EndReason.TRANSFERRED, carrier_over=True)
        elif self._leg.control.stop_ends_call:
            self.end(EndReason.CALLER_HUNG_UP, carrier_over=True)
        else:
            self.end(EndReason.STREAM_STOPPED)

    def stream_lost(self) -> None:
        self.end(EndReason.TRANSFERRED if self._transferring else EndReason.STREAM_LOST)

    # Requests of the agent

    def hang_up(self, request: str = "") -> None:
        """Hang up after the agent's goodbye. `request` is the id by which it can be withdrawn."""
        self._after_goodbye(request, lambda: self.end(EndReason.AGENT_HUNG_UP))

    def transfer(self, target: str, request: str | None = None) -> None:
        """Transfer the caller: at once or, for a request that can be withdrawn, after the agent's goodbye."""
        if request is not None:
            self._after_goodbye(request, lambda: self.transfer(target))
        else:
            self._tasks.create_task(self._transfer(target), name="transfer")

    def time_is_up(self) -> None:
        """Say that the longest call is reached, and hang up. The caller can't cancel it."""
        self.cancel_goodbye()
        self._requests = 1
        self._after_goodbye("", lambda: self.end(EndReason.TIME_LIMIT))
        self._say(TIME_IS_UP, interrupt=True)

    def caller_is_silent(self, goodbye: str) -> None:
        """Say goodbye to a silent caller, and hang up. A caller who speaks after all cancels it, every time."""
        self._requests = 0
        self._after_goodbye("", lambda: self.end(EndReason.CALLER_SILENT))
        self._say(goodbye)

    @property
    def is_ending(self) -> bool:
        """Whether a goodbye is being said, or a transfer is under way."""
        return self._transferring or (self._goodbye is not None and not self._goodbye.done())

    def withdraw(self, requests: Collection[str]) -> None:
        if self._request in requests:
            self.cancel_goodbye()

    def caller_spoke(self) -> None:
        """A caller who talks on has not finished. The second time the agent hangs up all the same."""
        if self._requests == 1:
            self.cancel_goodbye()

    def cancel_goodbye(self) -> None:
        if self._goodbye is not None:
            self._goodbye.cancel()
            self._goodbye = None

    def _after_goodbye(self, request: str, action: Callable[[], None]) -> None:
        async def wait() -> None:
            await self._speech.goodbye_played()
            action()

        if self._goodbye is None or self._goodbye.done():  # done: a transfer that failed
            self._speech.expect_goodbye()
            self._request = request
            self._requests += 1
            self._goodbye = self._tasks.create_task(wait(), name="goodbye")

    # At the carrier

    async def release_leg(self) -> None:
        """Hang up at the carrier, unless it has ended the call, or the stream alone has ended."""
        if self._carrier_over or self.reason in MAY_GO_ON:
            return
        try:
            await self._leg.hang_up()
        except CarrierRefused as error:
            self._log.error("call could not be hung up", extra={"reason": str(error)})
            self._events.publish("error", what="call could not be hung up", reason=str(error))

    async def _transfer(self, target: str) -> None:
        self._transferring = True  # the stream may end before the carrier has answered
        try:
            await self._leg.transfer(target)
        except (CarrierRefused, NumberNotAllowed) as error:
            self._transferring = False
            self._log.error("call could not be transferred", extra={"reason": str(error)})
            self._events.publish("error", what="call could not be transferred", reason=str(error))
            self._say(NOT_TRANSFERRED)
        else:
            self.end(EndReason.TRANSFERRED, carrier_over=True)
