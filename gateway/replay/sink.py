"""What the gateway has sent to one of the player's ends, and a way to wait for more of it."""

import asyncio
from dataclasses import dataclass

from gateway.replay.recording import RawText, RecordedMessage, RecordedSound


@dataclass(frozen=True, slots=True)
class ReceivedRequest:
    """One frame from the gateway; `at` is the loop's clock."""

    at: float
    content: RecordedMessage | RecordedSound | RawText


class Inbox:
    """Remembers arrivals in order, and counts them."""

    def __init__(self) -> None:
        self.arrivals: list[ReceivedRequest] = []
        self.silent_frames = 0
        """Frames of pure silence, which the gateway also makes itself; they are counted and not kept."""
        self._messages = 0
        self._sound_bytes = 0
        self._changed = asyncio.Event()

    def put(self, content: RecordedMessage | RecordedSound | RawText) -> None:
        self.arrivals.append(ReceivedRequest(asyncio.get_running_loop().time(), content))
        if isinstance(content, RecordedSound):
            self._sound_bytes += len(content.audio)
        else:
            self._messages += 1
        self._changed.set()

    async def holds(self, *, messages: int, sound_bytes: int, patience: float) -> bool:
        """Wait until at least so much has come; False if it does not come in time."""
        try:
            async with asyncio.timeout(patience):
                while self._messages < messages or self._sound_bytes < sound_bytes:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True
