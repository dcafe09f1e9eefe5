"""
A mailbox answers a call that the gateway placed: the agent stops speaking, leaves its message, and hangs up.

The carrier detects the mailbox and reports it by webhook: late, twice, out of order, or never. A person must not be
taken for a machine, so without a clear report the conversation goes on.
"""

import asyncio
import enum
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from gateway.calls.call_end import CallEnd
from gateway.calls.engine_connection import EngineConnection
from gateway.calls.speech_output import SpeechOutput
from gateway.calls.transcript import Transcript
from gateway.session import EndReason, Voicemail
from gateway.telephony.machine_detection import AnsweredBy


@dataclass(frozen=True)
class VoicemailTimeouts:
    """Durations in seconds."""

    report: float = 60.0
    """A later report is ignored: by then a person may be talking to the agent. Twilio took up to 40 s."""
    greeting: float = 30.0
    """From the detection of a machine to the message, if the end of its greeting is not reported."""
    start: float = 20.0
    """For the engine to begin with the message."""
    message: float = 120.0
    """For the message to be spoken and played."""
    repeat: float = 1.0
    """Before a message that the engine refused is sent again."""


class MailboxState(enum.Enum):
    UNKNOWN = enum.auto()
    PERSON = enum.auto()
    GREETING = enum.auto()
    """The agent is silent until the mailbox's greeting is over."""
    MESSAGE = enum.auto()


class MailboxHandler:
    """One stream of a call. `is_reached`: the audio that comes in is a machine's, and concerns the engine no more."""

    def __init__(
        self,
        transcript: Transcript,
        speech: SpeechOutput,
        engine: EngineConnection,
        end: CallEnd,
        tasks: asyncio.TaskGroup,
        timeouts: VoicemailTimeouts,
    ) -> None:
        self.is_reached = False
        self._transcript = transcript
        self._speech = speech
        self._engine = engine
        self._end = end
        self._tasks = tasks
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._ignore_at = self._loop.time() + timeouts.report
        self._state = MailboxState.UNKNOWN
        self._message = ""
        self._work: list[asyncio.Task[None]] = []

    def answered_by(self, report: AnsweredBy, message: str) -> None:
        """The carrier's report; may be repeated. `message` is left in a mailbox; if empty, the agent hangs up."""
        if self._end.is_over or self._state in (MailboxState.PERSON, MailboxState.MESSAGE):
            return
        if report is AnsweredBy.PERSON:
            self._state = MailboxState.PERSON if self._state is MailboxState.UNKNOWN else self._state
            return
        if self._state is MailboxState.UNKNOWN:
            if self._loop.time() > self._ignore_at:
                return
            self._fall_silent()
        if self._transcript.voicemail is Voicemail.LEFT:  # on an earlier stream of the call
            self._end.end(EndReason.VOICEMAIL_LEFT)
        elif not message or report is AnsweredBy.NO_MAILBOX:
            self._end.end(EndReason.VOICEMAIL_REACHED)
        elif report is AnsweredBy.GREETING_OVER:
            self._begin(message)
        elif self._state is MailboxState.UNKNOWN:
            self._state = MailboxState.GREETING
            self._start(self._wait_for_greeting(message), "mailbox greeting")

    def new_session(self) -> None:
        """The engine has a new session, which knows nothing of the message."""
        if self._state is MailboxState.GREETING:
            self._speech.mute()
        elif self._state is MailboxState.MESSAGE:
            self._speech.say_only(self._message)
            self._engine.say(self._message)

    def injection_refused(self) -> None:
        if self._state is MailboxState.MESSAGE:
            self._loop.call_later(self._timeouts.repeat, self._send)

    def call_over(self) -> None:
        """The stream has ended: cancel what waits for the mailbox, so that the call can go on with another stream."""
        for task in self._work:
            task.cancel()

    def _start(self, work: Coroutine[Any, Any, None], name: str) -> None:
        self._work.append(self._tasks.create_task(work, name=name))

    def _fall_silent(self) -> None:
        self.is_reached = True
        self._engine.ignore_caller()  # it would answer the greeting
        self._speech.mute()
        self._transcript.voicemail_reached()

    async def _wait_for_greeting(self, message: str) -> None:
        await asyncio.sleep(self._timeouts.greeting)
        self.answered_by(AnsweredBy.GREETING_OVER, message)

    def _begin(self, message: str) -> None:
        self._state, self._message = MailboxState.MESSAGE, message
        self._speech.say_only(message)
        self._start(self._leave(), "voicemail")
        self._send()

    def _send(self) -> None:
        """Without a session, `new_session` follows."""
        if self._engine.ready and not self._end.is_over:
            self._engine.say(self._message, interrupt=True)

    async def _leave(self) -> None:
        if await self._speech.played(start=self._timeouts.start, longest=self._timeouts.message):
            self._transcript.voicemail_left()
            self._end.end(EndReason.VOICEMAIL_LEFT)
        else:
            self._end.end(EndReason.VOICEMAIL_REACHED)
