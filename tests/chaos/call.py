"""
One scripted call in which every moment has a name.

It stops at a given moment, where the gateway is killed. Its texts are unique, so that the archive shows which of them
were stored.
"""

import asyncio
import contextlib
import itertools
import time
from typing import Any

from websockets.exceptions import ConnectionClosed

from tests.chaos.turn_check import Said, said_in
from tests.fakes.deepgram import Conversation, ConversationOver, FakeDeepgram
from tests.stage import PATIENCE, SOUND, in_time, until

MOMENTS = (
    "ring",
    "settings",
    "greeting",
    "user text",
    "first sentence",
    "agent text",
    "mark",
    "barge-in",
    "text after barge-in",
    "function call",
    "stop",
    "last words",
)

_numbers = itertools.count(1)


class ScriptedCall:
    """Caller and agent of one call."""

    def __init__(self, carrier: Any, engine: FakeDeepgram, *, caller: str, stop_at: str = "", pause: float = 0) -> None:
        self.carrier = carrier
        self.engine = engine
        self.phone: Any = None
        self.moment = ""
        self.conversations: list[Conversation] = []
        self.caller = caller
        self._past = len(engine.conversations)
        self._stop_at = stop_at
        self._pause = pause
        self._reached = asyncio.Event()
        self._gone_on = asyncio.Event()
        self.was_resumed = False
        """Whether the conversation was resumed after the kill."""
        self.heard_after: float | None = None
        """Seconds from the carrier's new stream until the caller heard the agent again."""
        self._marks_before = self._echoes_before = self._bytes_before = 0
        self._tag = _pronounceable(next(_numbers))
        self._lines = itertools.count(1)

    @property
    def said(self) -> list[Said]:
        """Turns on every engine connection since the call began."""
        return [one for conversation in self.engine.conversations[self._past :] for one in said_in(conversation.log)]

    async def stopped(self) -> None:
        """Wait until the call has reached its moment."""
        await in_time(self._reached.wait())

    def let_go(self, stop_at: str = "") -> None:
        """Continue to another moment, or to the end."""
        self._stop_at = stop_at
        self._reached.clear()
        self._gone_on.set()
        self.carrier.media.set()

    # Before the kill

    async def play(self) -> None:
        """Play the call from ring to hang-up. A gateway that dies ends it early."""
        with contextlib.suppress(ConnectionClosed, ConversationOver):
            await self._begin()
            await self._talk()
            await self._end()

    async def _begin(self) -> None:
        await self._pass_over()
        if self._stop_at == "ring":
            self.carrier.media.clear()
        dialling = asyncio.create_task(self.carrier.dial(self.caller))
        try:
            self.phone = await until(lambda: next((c for c in self.carrier.calls if c.caller == self.caller), None))
            await until(lambda: self.phone.token or self.phone.settled)
            await self._reach("ring")
            await dialling
        finally:
            dialling.cancel()
        conversation = await self._next_conversation()
        await conversation.configured(timeout=PATIENCE)
        await self._reach("settings")
        await self._first_words(conversation, beyond=0)
        await self._reach("greeting")

    async def _talk(self) -> None:
        conversation = self.conversations[-1]
        await conversation.user_says(self._line("I am looking for"))
        await self._reach("user text")
        marks = len(_marks(self.phone))
        await conversation.agent_says(self._line("We do have"), done=False)
        await self._reach("first sentence")
        await conversation.agent_says(self._line("Also take a look at"))
        await self._reach("agent text")
        await self._heard(conversation, beyond=marks + 1)
        await self._reach("mark")
        marks = len(_marks(self.phone))
        await conversation.agent_says(self._line("There is more to say of"), done=False)
        await conversation.send_conversation_text("assistant", self._line("No caller ever hears of"))
        await self._heard(conversation, beyond=marks)
        await conversation.barge_in()
        await self._reach("barge-in")
        await conversation.end_turn(self._line("Wait, what about"))
        await self._reach("text after barge-in")
        await conversation.call_functions(["look_it_up"], timeout=PATIENCE)
        await self._reach("function call")

    async def _end(self) -> None:
        """The caller hangs up while speaking; the engine sends the final text after the hang-up."""
        conversation = self.conversations[-1]
        marks = len(_marks(self.phone))
        await conversation.agent_says(self._line("I found"))
        await self._heard(conversation, beyond=marks)
        await conversation.user_starts_speaking()
        stream = self.phone.stream
        hanging_up = asyncio.create_task(self.phone.hang_up())
        try:
            await self.phone.until(lambda: stream is None or not stream.is_open, "stop", PATIENCE)
            await self._reach("stop")
            await conversation.end_turn(self._line("Goodbye and thanks for"))
            await self._reach("last words")
            await hanging_up
        finally:
            await asyncio.wait({hanging_up})  # the caller hangs up even if the gateway dies

    # After the kill

    async def lost(self) -> None:
        """The gateway is dead: audio queued in its stream is lost. Called before the restart."""
        if self.phone is not None and self.phone.streams:
            await self.phone.streams[-1].ended.wait()
        await self._pass_over()
        if self.phone is not None:
            self._marks_before, self._echoes_before = len(_marks(self.phone)), len(self.phone.marks_echoed)
            self._bytes_before = len(self.phone.heard_bytes)

    async def resume(self, *, timeout: float) -> None:
        """If the call gets a new stream, exchange a few turns and hang up."""
        with contextlib.suppress(TimeoutError, ConnectionClosed, ConversationOver):
            async with asyncio.timeout(timeout):
                conversation = await self._next_conversation()
                await conversation.configured(timeout=PATIENCE)
                await self._hears_again()
                await self._first_words(conversation, beyond=self._marks_before)
                await conversation.user_says(self._line("You are back with"))
                marks = len(_marks(self.phone))
                await conversation.agent_says(self._line("We go on with"))
                await self._heard(conversation, beyond=marks)
                await self.phone.hang_up()
                self.was_resumed = True

    async def _hears_again(self) -> None:
        await self.phone.until(lambda: len(self.phone.heard_bytes) > self._bytes_before, "sound", PATIENCE)
        self.heard_after = time.monotonic() - self.carrier.dialled_at

    async def leave(self) -> None:
        """Hang up if the call is still live."""
        if self.phone is not None and not self.phone.ended_by:
            await self.phone.hang_up()

    # Internal

    async def _next_conversation(self) -> Conversation:
        """The engine's side of the live stream. TimeoutError if the call ends without one."""
        while True:
            with contextlib.suppress(TimeoutError):
                conversation = await self.engine.next_conversation(timeout=0.1)
                self.conversations.append(conversation)
                if conversation.closed is None:
                    return conversation
            if self.phone.ended_by:
                raise TimeoutError

    async def _pass_over(self) -> None:
        """Skip engine connections that no call has used."""
        with contextlib.suppress(TimeoutError):
            while True:
                await self.engine.next_conversation(timeout=0)

    async def _first_words(self, conversation: Conversation, *, beyond: int) -> None:
        """
        Wait until the greeting was played completely.

        It may begin after SettingsApplied, and each of its sentences has a mark.
        """
        await conversation.until(lambda: bool(conversation.sent("AgentAudioDone")), timeout=PATIENCE)
        spoken = sum(len(entry.frame) for entry in conversation.log if _is_speech(entry))
        phone = self.phone
        await phone.until(
            lambda: len(phone.heard_bytes) >= self._bytes_before + spoken or phone.stream is None, "words", PATIENCE
        )
        await self._heard(conversation, beyond=beyond)

    async def _heard(self, conversation: Conversation, *, beyond: int) -> None:
        """
        Wait until the phone has played everything and the gateway has processed the marks.

        The last sentence has a mark after the first `beyond` marks.
        """
        phone = self.phone
        await until(lambda: not conversation.voice.locked())
        await phone.until(lambda: self._all_echoed(beyond) or phone.stream is None, "echoes", PATIENCE)
        before = len(conversation.heard)
        await phone.speak(SOUND)
        await conversation.hears(before + len(SOUND), timeout=PATIENCE)

    def _all_echoed(self, beyond: int) -> bool:
        marks = len(_marks(self.phone))
        echoes = len(self.phone.marks_echoed) - self._echoes_before + self._marks_before
        return beyond < marks <= echoes and self.phone.sent_frames[-1]["event"] == "mark"

    async def _reach(self, moment: str) -> None:
        self.moment = moment
        if moment == self._stop_at:
            self._gone_on.clear()
            self._reached.set()
            await self._gone_on.wait()
        await asyncio.sleep(self._pause)

    def _line(self, words: str) -> str:
        return f"{words} {self._tag} {_pronounceable(next(self._lines))}."


def _marks(phone: Any) -> list[Any]:
    return [frame for frame in phone.sent_frames if frame["event"] == "mark"]


def _is_speech(entry: Any) -> bool:
    return entry.direction == "out" and isinstance(entry.frame, bytes)


def _pronounceable(number: int) -> str:
    """A word for a number; digits could be redacted as a card number."""
    text = ""
    while number:
        number, syllable = divmod(number, 20)
        text = "bdfgklmnprstvzbdfgkl"[syllable] + "aeiou"[syllable // 4] + text
    return text
