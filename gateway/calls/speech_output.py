"""
What the caller hears: the engine's answer, filler, the gateway's own replies, the goodbye and the apology.

Engine audio passes straight through to the carrier. It is dropped after a barge-in, until the engine has moved on to
the next answer, and where nothing had to be answered. It is held back while the gateway answers in the engine's place.
Marks show what the caller has heard.
"""

import asyncio
import contextlib
import difflib
import enum
import itertools
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from gateway.agents import FillerSettings
from gateway.audio import bundled_sound
from gateway.calls.filler import Filler
from gateway.calls.monitoring import CallMonitor
from gateway.calls.playout import MARK_BYTES
from gateway.calls.transcript import Transcript
from gateway.calls.turn_latency import TurnLatencyTracker
from gateway.engines.interface import WordEnd
from gateway.telephony.media_stream import MediaStream

SAME_REPLY: Final = 0.8
"""Of two texts that differ by a word or two."""
APOLOGY_TEXT: Final = "I'm sorry, I can't continue this call right now. Please call again a little later. Goodbye."


@dataclass(frozen=True)
class SpeechTimeouts:
    """Durations in seconds."""

    remainder: float = 0.1
    """Audio too short for a frame waits this long for more."""
    goodbye: float = 10.0
    """The longest from a request to hang up until the hangup."""
    goodbye_start: float = 3.0
    """An agent that has not begun to speak by then has said its goodbye before."""
    final_turn: float = 3.0
    """A language model request for a turn that is not final by then is answered by the model."""
    reply_fetch: float = 0.3
    """A reply that the engine does not request within this time is injected."""


class Say(Protocol):
    def __call__(self, text: str, *, interrupt: bool = False) -> None:
        """Have the engine say this: after its current answer, or with `interrupt` instead of it."""


class _Gate(enum.Enum):
    """What the engine's audio is, as far as known."""

    OPEN = enum.auto()  # the agent's answer
    INTERRUPTED = enum.auto()  # the rest of an answer that the caller has cut off
    UNWANTED = enum.auto()  # an answer to a backchannel


_OPEN: Final = _Gate.OPEN  # compared for every frame: a module global is found faster than a member of the class


class SpeechOutput:
    """Everything one call says to its caller. Methods return at once, unless they are coroutines."""

    __slots__ = (  # used for each frame
        "_answer_began _answer_done _carrier _closed _continues _filler _gate _latency _loop _monitor "
        "_override _played _playout _say _sent_at _timeouts _transcript replies"
    ).split()

    def __init__(
        self,
        carrier: MediaStream,
        transcript: Transcript,
        monitor: CallMonitor,
        latency: TurnLatencyTracker,
        filler: FillerSettings,
        say: Say,
        timeouts: SpeechTimeouts,
    ) -> None:
        self.replies = CannedReplies(timeouts)
        self._carrier = carrier
        self._transcript = transcript
        self._playout = transcript.playout
        self._monitor = monitor
        self._latency = latency
        self._say = say
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._filler = Filler(
            filler.after,
            bundled_sound(filler.sound) if filler.sound else None,
            filler.phrases,
            play=carrier.play_filler,
            say=say,
            stop=self._stop_filler,
        )
        self._override = ReplyOverride()
        self._continues = False
        """Whether audio goes on with an answer that has begun. Anything that may concern the next audio resets it."""
        self._gate = _OPEN
        self._closed = False
        self._sent_at = self._loop.time()
        self._played: dict[str, asyncio.Event] = {}
        self._answer_began = asyncio.Event()
        self._answer_done = asyncio.Event()

    # From the engine

    def play(self, audio: bytes) -> None:
        """Pass audio on, with a mark after each word or 400 ms."""
        if self._continues and len(audio) <= MARK_BYTES:  # nearly every frame
            self._send(audio, self._loop.time(), is_answer=True)
            return
        if self._gate is not _OPEN or self._closed:
            return
        if self._override.active:
            self._override.hold(audio)
            return
        now = self._loop.time()
        is_answer = not self._filler.saying
        is_new = is_answer and (not self._transcript.has_audio or self._latency.awaits_answer)
        if is_answer:
            self._filler.stop_playing()
            self._answer_began.set()
        if is_new:
            self._latency.first_audio(now)
        word_ends = self._transcript.word_ends(len(audio)) if is_answer else set()
        cuts = sorted(word_ends.union(range(MARK_BYTES, len(audio) + MARK_BYTES, MARK_BYTES)))
        for start, end in itertools.pairwise([0, *cuts]):  # the last end may lie behind the audio
            if piece := audio[start:end]:
                self._send(piece, now, is_answer=is_answer, ends_word=end in word_ends)
        if is_new:
            self._latency.first_frame(self._loop.time())
        self._continues = is_answer and not self._transcript.has_word_times

    def _send(self, audio: bytes, now: float, *, is_answer: bool, ends_word: bool = False) -> None:
        """Up to 400 ms of audio."""
        self._sent_at = now
        if is_answer:
            self._transcript.agent_audio(len(audio), now)
        self._carrier.send_audio(audio)
        if self._playout.audio_sent(len(audio), now) or ends_word:
            self._carrier.send_mark(self._playout.next_mark())
        if self._monitor.listeners:
            self._monitor.agent_audio(audio, now)

    def text(self, text: str) -> None:
        """Write down what the agent says. Held audio of this text is played."""
        self._continues = False
        if self._gate is not _OPEN or self._closed or self._filler.takes(text):
            return
        if self._override.active:
            held = self._override.release(text)
            if held is None:
                return
            self.play(held)
        if self._playout.unmarked:  # shows exactly whether the previous sentence was heard
            self._carrier.send_mark(self._playout.next_mark())
        before_answer = self._latency.precedes_answer(text)
        by_operator = self._transcript.agent_said(text, self._transcript.now(), before_answer=before_answer)
        if not before_answer:
            self._latency.agent_said(by_operator=by_operator)

    def words_timed(self, ends: Sequence[WordEnd]) -> None:
        """Where words of the last text end in its audio, which follows."""
        if self._gate is _OPEN and not self._override.active and not self._filler.saying:
            self._continues = False
            self._transcript.words_timed(ends)

    def audio_done(self) -> None:
        """The engine has sent all audio of an answer."""
        if self._gate is _Gate.UNWANTED:
            self._gate = _OPEN  # it is over
            return
        if self._gate is not _OPEN or self._override.active:
            return  # of the interrupted answer
        self._carrier.finish_audio()
        if not self._filler.saying:
            self._transcript.agent_audio_done()
            self._answer_done.set()
        self._carrier.send_mark(self._playout.next_mark())
        self._filler.phrase_over()

    def injection_refused(self) -> None:
        self._filler.phrase_over()

    def open_gate(self) -> None:
        """The engine has moved on: audio from now on belongs to a new answer."""
        self._gate = _OPEN

    def new_session(self) -> None:
        """A new engine session: nothing of an earlier answer will come."""
        self._gate = _OPEN
        self._override.end()

    # From the caller

    def interrupt(self) -> int | None:
        """Barge-in: silence the agent. May be repeated. Returns the unplayed milliseconds of an answer it cut off."""
        if self._closed:
            return None
        self._continues = False
        self._filler.caller_speaks()
        self.replies.caller_speaks()
        self._carrier.send_clear()
        unheard_ms = self._transcript.interrupted(self._loop.time())
        self._playout.cleared()
        self._monitor.clear()
        self._gate = _Gate.INTERRUPTED
        return unheard_ms

    def drop_answer(self) -> None:
        """The caller's turn needs no answer: drop the engine's. Functions that it calls are answered aloud."""
        self._continues = False
        self._gate = _Gate.UNWANTED

    def turn_is_final(self, text: str, *, overridden: bool, reply: str = "") -> None:
        """The caller's turn is complete. `overridden`: the gateway answers it, with `reply` if that is ready."""
        self._gate = _OPEN
        self._continues = False
        self.replies.turn_is_final(text, overridden=overridden)
        if overridden:
            self._override.begin()
            self._override.expect(reply)
        else:
            self._override.end()
            self._filler.caller_finished(self._loop.time())

    def mark_played(self, name: str) -> None:
        self._playout.mark_reached(name, self._loop.time())
        if name in self._played:
            self._played.pop(name).set()

    # From the call

    @property
    def overridden(self) -> bool:
        """Whether the engine's answer is held back because the gateway answers."""
        return self._override.active

    def expect_own_words(self) -> None:
        """The gateway has the engine say something, which is not an unwanted answer."""
        if self._gate is _Gate.UNWANTED:
            self._gate = _OPEN

    async def reply(self, said: str, text: str) -> None:
        """Say this instead of the engine's answer to what the caller said."""
        self._override.expect(text)
        if not await self.replies.offer(said, text):
            self._say(text, interrupt=self._override.active)

    def expect_goodbye(self) -> None:
        """Count what the agent says from now on as its goodbye."""
        self._continues = False
        self._answer_began.clear()
        self._answer_done.clear()

    async def goodbye_played(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.goodbye):
                if await wait_for_event(self._answer_began, self._timeouts.goodbye_start):
                    await self._answer_done.wait()
                await self._all_played()

    def mute(self) -> None:
        """Stop speaking. Nothing that the engine says is heard until `say_only`."""
        self.interrupt()
        self._override.begin()

    def say_only(self, text: str) -> None:
        """Of what the engine says from now on, this is the first to be heard; `played` waits for it."""
        self.expect_goodbye()
        self._gate = _OPEN
        self._override.begin()
        self._override.expect(text, may_differ=True)

    async def played(self, *, start: float, longest: float) -> bool:
        """Wait until the answer was played. Returns whether it was: begun within `start`, over within `longest`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(longest):
                if await wait_for_event(self._answer_began, start):
                    await self._answer_done.wait()
                    await self._all_played()
                    return True
        return False

    async def apologise(self) -> None:
        """Play the recorded apology: there is no engine any more."""
        self.new_session()
        self._transcript.agent_said(APOLOGY_TEXT, self._transcript.now())
        self.play(bundled_sound("apology"))
        self._transcript.agent_audio_done()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timeouts.goodbye):
                await self._all_played()

    def tick(self, now: float) -> None:
        """Called several times a second."""
        if now - self._sent_at > self._timeouts.remainder:
            self._sent_at = math.inf
            self._carrier.finish_audio()
        self._filler.tick(now)

    def close(self) -> None:
        """The call is over: nothing more is played."""
        self._filler.call_over()
        self._closed = True
        self._continues = False

    async def _all_played(self) -> None:
        self._carrier.finish_audio()
        name = self._playout.next_mark()
        played = self._played[name] = asyncio.Event()
        self._carrier.send_mark(name)
        await played.wait()

    def _stop_filler(self) -> None:
        self._carrier.stop_filler()
        self._playout.cleared()


class ReplyOverride:
    """
    Separates a reply of the gateway from the engine's own answer, which comes from the same engine.

    The engine starts to answer as soon as the caller has spoken. While active, its text and audio are dropped until
    the text of our reply arrives. No clock, no socket.
    """

    def __init__(self) -> None:
        self.active = False
        self._text = ""
        self._may_differ = False
        self._audio = bytearray()
        self._audio_first: bool | None = None

    def begin(self) -> None:
        """The caller has said something that the gateway answers."""
        self.active = True
        self._text = ""
        self._audio.clear()
        self._audio_first = None

    def expect(self, text: str, *, may_differ: bool = False) -> None:
        """
        The engine is about to say this reply: audio until now is not of it.

        `may_differ`: by a few words. An engine whose model speaks may not keep to them.
        """
        self._text, self._may_differ = _words(text), may_differ
        self._audio.clear()

    def end(self) -> None:
        """Pass everything on again: the caller goes on, or the engine session is a new one."""
        self.active = False

    def hold(self, audio: bytes) -> None:
        self._audio += audio
        if self._audio_first is None:
            self._audio_first = True

    def release(self, text: str) -> bytes | None:
        """
        The engine says this text. Returns None if it is not our reply, else audio of it that came earlier.

        Engines differ in whether the audio of a sentence precedes its text; within one answer they don't.
        """
        if self._audio_first is None:
            self._audio_first = False
        audio = bytes(self._audio) if self._audio_first else b""
        self._audio.clear()
        if not self._is_ours(_words(text)):
            return None
        self.active = False
        return audio

    def _is_ours(self, said: str) -> bool:
        if not self._text or self._text.startswith(said):
            return bool(self._text)
        likeness = difflib.SequenceMatcher(None, self._text[: len(said)], said, autojunk=False)
        return self._may_differ and likeness.ratio() > SAME_REPLY


class CannedReplies:
    """
    Replies of the gateway to language model requests of the engine, for an agent with its own model.

    The engine requests an answer before it reports the caller's turn, and perhaps for half of it. A request that may
    be for us waits until the turn is final. Used on the event loop.
    """

    def __init__(self, timeouts: SpeechTimeouts) -> None:
        self.enabled = False
        """Whether the engine sends its language model requests to the gateway."""
        self._timeouts = timeouts
        self._replies: dict[str, asyncio.Future[str]] = {}
        self._final = ""
        self._fetched = asyncio.Event()

    # From the call

    def caller_speaks(self) -> None:
        """Drop earlier replies: the same words in a new turn may mean something else."""
        self._final = ""
        for key, reply in list(self._replies.items()):
            if reply.done():
                del self._replies[key]

    def turn_is_final(self, said: str, *, overridden: bool) -> None:
        """The caller said exactly this. `overridden`: `offer` follows."""
        self._final = _words(said) if overridden else ""
        self._fetched.clear()
        for key, reply in list(self._replies.items()):
            if not reply.done() and key != self._final:
                reply.set_result("")
                del self._replies[key]
        if overridden:
            self._reply(self._final)

    async def offer(self, said: str, text: str) -> bool:
        """Answer requests for this turn with `text`. Returns whether the engine has fetched it."""
        if not self.enabled:
            return False
        reply = self._reply(_words(said))
        if not reply.done():
            reply.set_result(text)
        return await wait_for_event(self._fetched, self._timeouts.reply_fetch)

    # From the language model endpoint

    def expects(self, said: str) -> bool:
        return bool(self._final) and _words(said) == self._final

    async def fetch(self, said: str) -> str:
        """The reply to these words; empty if the language model is to answer."""
        reply = self._reply(_words(said))
        if not self.expects(said):
            await asyncio.wait({reply}, timeout=self._timeouts.final_turn)
        if not (reply.done() or self.expects(said)):
            return ""
        text = await asyncio.shield(reply)
        if text:
            self._fetched.set()
        return text

    def _reply(self, key: str) -> "asyncio.Future[str]":
        return self._replies.setdefault(key, asyncio.get_running_loop().create_future())


def _words(text: str) -> str:
    """The words alone: two reports of the same words may differ in punctuation."""
    return "".join(f"{word} " for word in re.findall(r"\w+", text.casefold()))


async def wait_for_event(event: asyncio.Event, seconds: float) -> bool:
    """Wait up to `seconds`. Returns whether the event is set."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):  # wait_for would swallow a cancellation that comes with the event
            await event.wait()
    return event.is_set()
