"""
Holds a connection to the voice engine for the whole call.

Sound that comes while the engine is not ready is kept for it; a carrier's pause is filled with silence; a lost
connection is made again, with the conversation so far and no second greeting, a bounded number of times.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gateway.audio import BYTES_PER_SECOND, SILENCE_FRAME
from gateway.calls.agent_context import AgentContext
from gateway.calls.graceful_hangup import wait_for_event
from gateway.engines.deepgram import DeepgramSession, EngineEvents
from gateway.engines.deepgram_codec import KEEP_ALIVE_SECONDS
from gateway.errors import EngineUnavailable
from gateway.history.live_events import CallEvents, EventPublisher
from gateway.metrics import ENGINE_LOSSES, MEMORY_LOAD, WATCHDOG
from gateway.settings import Secret
from gateway.websocket.interface import Connector

MEMORY_SECONDS: Final = 0.08
"""The longest that Settings wait for memory after `start`; they leave within 150 ms."""

SILENCE_AFTER: Final = 0.2
"""A carrier pause longer than this is filled with silence: the engine hears the end of a turn in the audio."""

RECONNECT_PAUSES: Final = (0.2, 0.5, 1.0, 2.0, 3.0)
"""Between tries to reach the engine; after the last one the call is given up."""
AWAY_SECONDS: Final = 12.0
"""So long after the engine was last there no further try is begun: somebody listens to silence meanwhile."""
STEADY_SECONDS: Final = 30.0
"""An engine that held this long starts with a clean record."""

EARLY_AUDIO_SECONDS: Final = 10.0
"""Sound kept until the engine first takes it: the caller's first words."""
RECONNECT_AUDIO_SECONDS: Final = 1.0
"""Sound kept while the engine is away; what is older would be answered too late."""

ANSWER_SECONDS: Final = 20.0
"""An engine that has said nothing at all for so long after the caller's turn has stopped answering."""

STALLED_BYTES: Final = 4 * 1024 * 1024
"""Unsent data at which a peer has stopped reading."""


@dataclass(frozen=True)
class EngineConfig:
    """How to reach the voice engine."""

    connect: Connector
    url: str
    headers: Mapping[str, Secret] = field(default_factory=dict)
    name: str = "deepgram"


class EngineConnection:
    """The call's engine, whether it is there at the moment or not."""

    def __init__(
        self,
        call: EngineEvents,
        access: EngineConfig,
        agent_context: AgentContext,
        *,
        sorry: str,
        resumed: bool = False,
        call_events: CallEvents | None = None,
        log: logging.LoggerAdapter[logging.Logger],
    ) -> None:
        self._call = call
        self._access = access
        self._agent_context = agent_context
        self._sorry = sorry
        self._call_events = call_events or EventPublisher().call("", "", "", "", kept=False)
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._early: deque[bytes] = deque()
        self._early_bytes = 0
        self._was_ready = False
        self._sorry_due = resumed
        self._unsaid: list[str] = []
        self._brief_is_void = False
        self._filled_at = self._heard_at = self._away_since = self._loop.time()
        self._taken = asyncio.Event()
        self.link: DeepgramSession | None = None
        self.ready = False
        """Whether the engine takes audio."""
        self.answer_due_since: float | None = None
        """When the caller finished a turn that the agent has not begun to answer."""

    async def run(self) -> None:
        """Keep a connection until cancelled. EngineRefused or EngineUnavailable when there is no hope of one."""
        pauses = list(RECONNECT_PAUSES)
        while True:
            tried_at = self._loop.time()
            try:
                await self._converse()
            except EngineUnavailable as error:
                now = self._loop.time()
                if now - tried_at > STEADY_SECONDS:
                    pauses = list(RECONNECT_PAUSES)
                if not pauses or now - self._away_since > AWAY_SECONDS:
                    raise
                self._log.warning("engine lost, connecting again", extra={"reason": str(error)})
                self._call_events.tell("engine_lost", reason=str(error))
                ENGINE_LOSSES.count(self._access.name)
                await asyncio.sleep(pauses.pop(0))

    async def _converse(self) -> None:
        """One connection, from handshake to loss. Ends with an EngineError."""
        link = DeepgramSession(self._call, self._access.name)
        started = self._loop.time()
        try:
            await link.open(self._access.connect, self._access.url, self._access.headers)
            self.link = link
            waited = self._loop.time() - started
            agent_settings = await self._agent_context.agent_settings(MEMORY_SECONDS - waited)
            self._brief_is_void = False
            if not self._was_ready:
                self._record("memory")
                told = self._agent_context.told
                self._call_events.tell("memory", **told)
                if told["outcome"] != "off":
                    MEMORY_LOAD.observe(self._agent_context.memory_seconds, told["outcome"])
            await link.configure(agent_settings)
            await link.lost()
        finally:
            if self.ready:
                self._away_since = self._loop.time()
            self.ready, self.link = False, None
            link.close()

    @property
    def name(self) -> str:
        return self._access.name

    # The call's side

    def hear(self, audio: bytes) -> None:
        """Sound from the caller: to the engine now, or as soon as it is there."""
        now = self._loop.time()
        self._heard_at = self._filled_at = now
        if self.ready and self.link is not None:
            self.link.send_audio(audio, at=now)
        else:
            self._keep_early(audio)

    async def takes_all(self, seconds: float) -> bool:
        """Wait so long until the engine has what was said while it was not there; whether it is there."""
        if self._early:
            self._taken.clear()
            await wait_for_event(self._taken, seconds)
        return self.ready

    def applied(self) -> None:
        """The engine took its settings: first what was said while it was not there. Told twice, it changes nothing."""
        if self.link is None or self.ready:
            return
        now = self._loop.time()
        self.ready = True
        while self._early:
            self.link.send_audio(self._early.popleft(), at=now)
        self._early_bytes = 0
        self._taken.set()
        self._filled_at = max(self._heard_at, now - SILENCE_AFTER)
        if self._was_ready:
            self._call_events.tell("engine_back")
        if self._sorry_due:
            self.link.say(self._sorry)
        self._was_ready = self._sorry_due = True
        while self._unsaid:
            self.link.say(self._unsaid.pop(0))
        if self._brief_is_void:
            self.brief_anew()
        self.tell_untold()

    def say(self, text: str) -> None:
        """Have the agent say it: now, or as soon as the engine is there."""
        if self.ready and self.link is not None:
            self.link.say(text)
        else:
            self._unsaid.append(text)

    def say_instead(self, text: str) -> None:
        """Have the agent say it in the place of whatever it was about to say."""
        if self.ready and self.link is not None:
            self.link.say_instead(text)
        else:
            self._unsaid.append(text)

    def brief_anew(self) -> None:
        """What the engine was told must not be known to it any more."""
        self._brief_is_void = not self.ready
        if self.ready and self.link is not None:
            self.link.update_think(self._agent_context.as_of_now())

    def tell_untold(self) -> None:
        """Give the engine the notes that came too late for its brief."""
        if self.ready and self.link is not None and (addition := self._agent_context.untold()):
            self.link.update_prompt(addition)
            self._record("late memory")
            self._log.info("memory told in mid-call")
            self._call_events.tell("memory", **self._agent_context.told)

    def _record(self, note: str) -> None:
        """Have a recording know what the engine is told, so that a replay can tell it the same."""
        if self._call.recorder is not None:
            self._call.recorder.note(note, self._agent_context.memory)

    def tick(self, now: float) -> None:
        """Called a few times a second: silence for a pausing carrier, keep-alive, and an end to a stalled engine."""
        if self.link is None:
            return
        if self.link.buffered_bytes > STALLED_BYTES:
            WATCHDOG.count("engine stopped reading")
            self._log.warning("engine stopped reading")
            self.link.drop()
        elif self._unanswered(self.link, now):
            WATCHDOG.count("engine stopped answering")
            self._log.warning("engine stopped answering", extra={"seconds": ANSWER_SECONDS})
            self.answer_due_since = None
            self.link.drop()
        elif self.ready and now - self._heard_at > SILENCE_AFTER:
            self._fill_silence(self.link, now)
        elif now - self.link.sent_at > KEEP_ALIVE_SECONDS:
            self.link.keep_alive(at=now)

    def _unanswered(self, link: DeepgramSession, now: float) -> bool:
        since = self.answer_due_since
        return since is not None and now - max(since, link.received_at) > ANSWER_SECONDS

    def _fill_silence(self, link: DeepgramSession, now: float) -> None:
        frames = int((now - self._filled_at) * BYTES_PER_SECOND / len(SILENCE_FRAME))
        for _ in range(frames):
            link.send_silence(SILENCE_FRAME, at=now)
        self._filled_at += frames * len(SILENCE_FRAME) / BYTES_PER_SECOND

    def _keep_early(self, audio: bytes) -> None:
        """Keep the newest seconds; more before the first connection than while one is being replaced."""
        seconds = RECONNECT_AUDIO_SECONDS if self._was_ready else EARLY_AUDIO_SECONDS
        self._early.append(audio)
        self._early_bytes += len(audio)
        while self._early_bytes > seconds * BYTES_PER_SECOND:
            self._early_bytes -= len(self._early.popleft())
