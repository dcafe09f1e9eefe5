"""One call at its carrier: what can be done about it there."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from gateway.telephony.phone_numbers import e164
from gateway.telephony.rest import CallControl


class CallLeg(Protocol):
    """One call at its carrier. Methods raise CarrierRefused."""

    @property
    def stop_ends_call(self) -> bool:
        """Whether the end of the media stream is the end of the call."""

    async def hang_up(self) -> None: ...

    async def transfer(self, target: str) -> None:
        """Connect the caller to a number or SIP address; the media stream ends."""


@dataclass(frozen=True)
class CallLegControl:
    """One call's. `is_ours`: whether no other node has it by now."""

    control: CallControl
    call_id: str
    called: str
    media_url: str
    is_ours: Callable[[], Awaitable[bool]]

    @property
    def stop_ends_call(self) -> bool:
        return self.control.stop_ends_call

    async def hang_up(self) -> None:
        if await self.is_ours():
            await self.control.hang_up(self.call_id)

    async def transfer(self, target: str) -> None:
        """From the number that was dialled: a carrier takes no other of ours, and the caller's is not ours to show."""
        caller_id = e164(self.called) or ""
        await self.control.transfer(self.call_id, target, caller_id=caller_id, media_url=self.media_url)
