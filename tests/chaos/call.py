"""
One scripted call, with a name for every moment in it.

It stops for good at the moment it was told to: there the gateway is killed. Texts are unlike any other call's, so that
the archive shows exactly which of them it has.
"""

import asyncio
import contextlib
import itertools
import time
from typing import Any

from websockets.exceptions import ConnectionClosed

from tests.chaos.patience import LIMIT, until, wait_for_event
from tests.chaos.verdict import Said, said_in
from tests.fakes.deepgram import Conversation, ConversationOver, FakeDeepgram
from tests.stage import SOUND

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
    """A caller, an agent, and what they say to each other."""

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
        self.went_on = False
        """Whether the conversation was taken up again after the kill."""
        self.heard_after: float | None = None
        """Seconds from the carrier's new stream until the caller heard the agent again."""
        self._marks_before = self._echoes_before = self._bytes_before = 0
        self._tag = _pronounceable(next(_numbers))
        self._lines = itertools.count(1)

    @property
    def said(self) -> list[Said]:
        """On every socket that the engine had since the call began, whoever asked for it."""
        return [one for conversation in self.engine.conversations[self._past :] for one in said_in(conversation.log)]

    async def stopped(self) -> None:
        """Until the call stands at its moment."""
        await wait_for_event(self._reached.wait())

    def let_go(self, stop_at: str = "") -> None:
        """On from where it stands, to another moment or to the end."""
        self._stop_at = stop_at
        self._reached.clear()
        self._gone_on.set()
        self.carrier.media.set()

    # Before the kill

    async def play(self) -> None:
        """From ring to hangup. A gateway that dies ends it early."""
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
        await conversation.configured(timeout=LIMIT)
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
        await conversation.send_conversation_text("assistant", self._line("Nobody ever hears of"))
        await self._heard(conversation, beyond=marks)
        await conversation.barge_in()
        await self._reach("barge-in")
        await conversation.end_turn(self._line("Wait, what about"))
        await self._reach("text after barge-in")
        await conversation.call_functions(["look_it_up"], timeout=LIMIT)
        await self._reach("function call")

    async def _end(self) -> None:
        """The caller hangs up in mid-sentence; the engine writes it down when nobody is there any more."""
        conversation = self.conversations[-1]
        marks = len(_marks(self.phone))
        await conversation.agent_says(self._line("I found"))
        await self._heard(conversation, beyond=marks)
        await conversation.user_starts_speaking()
        stream = self.phone.stream
        hanging_up = asyncio.create_task(self.phone.hang_up())
        try:
            await self.phone.until(lambda: stream is None or not stream.is_open, "stop", LIMIT)
            await self._reach("stop")
            await conversation.end_turn(self._line("Goodbye and thanks for"))
            await self._reach("last words")
            await hanging_up
        finally:
            await asyncio.wait({hanging_up})  # the caller's hand does not stop when the gateway dies

    # After it

    async def lost(self) -> None:
        """The gateway is dead: what its stream had queued will never be played. Nothing new comes before this."""
        if self.phone is not None and self.phone.streams:
            await self.phone.streams[-1].ended.wait()
        await self._pass_over()
        if self.phone is not None:
            self._marks_before, self._echoes_before = len(_marks(self.phone)), len(self.phone.marks_echoed)
            self._bytes_before = len(self.phone.heard_bytes)

    async def go_on(self, *, patience: float) -> None:
        """Where the call has a stream again, a few words more and a hangup."""
        with contextlib.suppress(TimeoutError, ConnectionClosed, ConversationOver):
            async with asyncio.timeout(patience):
                conversation = await self._next_conversation()
                await conversation.configured(timeout=LIMIT)
                await self._hears_again()
                await self._first_words(conversation, beyond=self._marks_before)
                await conversation.user_says(self._line("You are back with"))
                marks = len(_marks(self.phone))
                await conversation.agent_says(self._line("We go on with"))
                await self._heard(conversation, beyond=marks)
                await self.phone.hang_up()
                self.went_on = True

    async def _hears_again(self) -> None:
        await self.phone.until(lambda: len(self.phone.heard_bytes) > self._bytes_before, "sound", LIMIT)
        self.heard_after = time.monotonic() - self.carrier.dialled_at

    async def leave(self) -> None:
        """Whoever is still on the line hangs up."""
        if self.phone is not None and not self.phone.ended_by:
            await self.phone.hang_up()

    # Itself

    async def _next_conversation(self) -> Conversation:
        """The engine's end of a living stream, or TimeoutError as soon as the call is over without one."""
        while True:
            with contextlib.suppress(TimeoutError):
                conversation = await self.engine.next_conversation(timeout=0.1)
                self.conversations.append(conversation)
                if conversation.closed is None:
                    return conversation
            if self.phone.ended_by:
                raise TimeoutError

    async def _pass_over(self) -> None:
        """Sockets that have arrived at the engine and nobody asked for are nobody's."""
        with contextlib.suppress(TimeoutError):
            while True:
                await self.engine.next_conversation(timeout=0)

    async def _first_words(self, conversation: Conversation, *, beyond: int) -> None:
        """
        What the agent says of its own accord was heard, all of it.

        It may not have begun when its settings are applied, and there is a mark after each of its sentences.
        """
        await conversation.until(lambda: bool(conversation.sent("AgentAudioDone")), timeout=LIMIT)
        spoken = sum(len(entry.frame) for entry in conversation.log if _is_speech(entry))
        phone = self.phone
        await phone.until(
            lambda: len(phone.heard_bytes) >= self._bytes_before + spoken or phone.stream is None, "words", LIMIT
        )
        await self._heard(conversation, beyond=beyond)

    async def _heard(self, conversation: Conversation, *, beyond: int) -> None:
        """
        The phone has played all there was, and the gateway knows: its echoes came before this sound.

        `beyond` so many marks there is one that belongs to what was said last.
        """
        phone = self.phone
        await until(lambda: not conversation.voice.locked())
        await phone.until(lambda: self._all_echoed(beyond) or phone.stream is None, "echoes", LIMIT)
        before = len(conversation.heard)
        await phone.speak(SOUND)
        await conversation.hears(before + len(SOUND), timeout=LIMIT)

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
    """A word for a number; digits might be taken for a card's and hidden."""
    text = ""
    while number:
        number, syllable = divmod(number, 20)
        text = "bdfgklmnprstvzbdfgkl"[syllable] + "aeiou"[syllable // 4] + text
    return text
