"""
Live events: what happens in calls, for watchers, the dashboard and traces.

A call publishes and goes on at once. Events are stored in the call log (`call_log.py`), and in Redis where nodes share
one, and read from there. Words go to readers, never to logs. Of an anonymous caller, and off the record, neither words
nor number are stored: only the process that has the call shows them, while it runs.
"""

import asyncio
import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import orjson

from gateway.history.call_log import CallLog, Cursor, Entry, LogRow, RecoveredCall, Row, rows_beside_turns
from gateway.llm.chat import ModelAttempt, ModelName
from gateway.response_time import STAGES, ResponseTime
from gateway.session import Consent, TrustLevel, Voicemail, VoiceSession

EVENTS: Final = (
    "dialling unanswered ringing refused answered memory turn answer_started model_finished interruption "
    "function_called function_finished engine_lost engine_back media_lost voicemail error hangup step summary finished"
).split()
"""All events. docs/http-api.md says what they mean and which fields they have."""

MAX_UNSTORED: Final = 1000
_PRIVATE: Final = ("caller", "text", "heard", "unheard", "arguments", "result")

ShareEvent = Callable[[bytes], None]
"""Sends an event, as JSON, to other nodes. Returns at once."""
ShareRow = Callable[[str, bytes], None]
"""Sends a row of a session, as JSON, to other nodes, which may have to recover the call. Returns at once."""


def keep_local(*_: object) -> None:
    """Shares nothing: there is one node."""


class EventSource(Protocol):
    """Events that can be read from any position."""

    async def head(self) -> Cursor:
        """The position of the newest event."""

    async def after(self, cursor: Cursor, *, wait: float = 0.0) -> list[Entry]:
        """
        The next events, oldest first; waits up to `wait` seconds for one.

        Raises StoreUnavailable, or SharedStoreUnavailable where nodes share them.
        """


class NoCallLog:
    """Stores nothing."""

    def open_call(self, session: VoiceSession, header: dict[str, Any]) -> None: ...

    def take_over(self, session: VoiceSession, header: dict[str, Any]) -> None: ...

    def claim(self, session_id: str) -> None: ...

    async def unfinished(self) -> list[RecoveredCall]:
        return []

    async def rows(self, session_id: str) -> list[Row]:
        return []

    def append(self, row: LogRow, entry: Row) -> None: ...

    def publish(self, row: LogRow, event: bytes, *, appended: bool = False) -> None: ...

    def retract(self, row: LogRow, turns: Iterable[str], rest: Iterable[Row]) -> None: ...

    def redact(self, session_id: str) -> None: ...

    def release(self, session_id: str) -> None: ...

    async def flushed(self) -> None: ...

    async def head(self) -> Cursor:
        return Cursor()

    async def after(self, cursor: Cursor, *, wait: float = 0.0) -> list[Entry]:
        await asyncio.sleep(wait)
        return []


class EventPublisher:
    """
    Publishes this process's events, and reads those of all nodes.

    `log` stores the events of this process. `source` is what readers see: the log, unless nodes share a stream that
    `share` writes. `listener` gets each event at once.
    """

    def __init__(
        self,
        log: CallLog | NoCallLog | None = None,
        source: EventSource | None = None,
        share: ShareEvent = keep_local,
        *,
        listener: Callable[[Mapping[str, Any]], None] = keep_local,
    ) -> None:
        self.log = log or NoCallLog()
        self._source: EventSource = source or self.log
        self._share = share
        self._listener = listener
        self._closed = False
        self._numbers = itertools.count()
        self._process = secrets.token_hex(4)
        self._unstored: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._on_close: set[Callable[[], object]] = set()

    # Calls

    def of(self, session: VoiceSession, *, kept: bool = True) -> "CallEvents":
        number = session.number or session.caller
        return self.call(session.id, session.agent, number, session.carrier, kept=kept and bool(session.caller))

    def call(
        self, session_id: str, agent: str, caller: str, carrier: str, *, kept: bool, share: ShareRow = keep_local
    ) -> "CallEvents":
        """The events of one call. `kept`: whether words and number may be stored."""
        about = {"session": session_id, "agent": agent, "caller": caller, "carrier": carrier}
        return CallEvents(self, about, kept=kept, share=share)

    def publish(self, event: dict[str, Any], *, kept: bool, held: LogRow | None = None) -> None:
        """`held`: the row that the log has of it already."""
        self._listener(event)
        stored = event
        if not kept:  # the rest stays in memory for a while
            key = f"{self._process}-{next(self._numbers)}"
            self._unstored[key] = event
            if len(self._unstored) > MAX_UNSTORED:
                self._unstored.popitem(last=False)
            stored = {name: value for name, value in event.items() if name not in _PRIVATE}
            stored |= {"caller": "", "unkept": key}
        content = orjson.dumps(stored)
        row = held or LogRow(stored["session"], stored["caller"], stored["agent"])
        self.log.publish(row, content, appended=held is not None)
        self._share(content)

    # Readers

    @property
    def is_open(self) -> bool:
        return not self._closed

    async def head(self) -> Cursor:
        return await self._source.head()

    async def after(self, cursor: Cursor, *, wait: float = 0.0) -> list[Entry]:
        """The next events, with the words of those that this process did not store."""
        entries = await self._source.after(cursor, wait=wait)
        return [(place, self._unstored.get(event.pop("unkept", ""), event)) for place, event in entries]

    def at_close(self, end_stream: Callable[[], object]) -> Callable[[], None]:
        """Have this called when the server stops. The result cancels it."""
        self._on_close.add(end_stream)
        return lambda: self._on_close.discard(end_stream)

    def close(self) -> None:
        """The server stops: end the readers' streams."""
        self._closed = True
        for end_stream in list(self._on_close):
            end_stream()


class CallEvents:
    """Writes one call's turns and events. Every method returns at once."""

    def __init__(self, publisher: EventPublisher, about: dict[str, str], *, kept: bool, share: ShareRow) -> None:
        self._publisher = publisher
        self._about = about
        self._kept = kept
        self._share = share
        self._off_record = False
        self._held: dict[str, Any] | None = None
        """The first piece of an answer, until its latency is known."""
        self._held_row: LogRow | None = None
        self._awaits_audio: int | None = None
        """The number of an answer whose text was published before its audio was sent."""
        self._sounded = False
        self._latency: dict[str, Any] = {}

    def publish(self, event: str, **fields: Any) -> None:
        """Publish one of EVENTS."""
        self._release_held()
        self._publish({"event": event, "at": datetime.now(UTC).isoformat(), **fields})

    # The transcript

    def caller_said(self, text: str, at: datetime, *, is_late: bool = False) -> None:
        """`is_late`: the agent has begun to answer it."""
        self._release_held()
        turn: dict[str, Any] = {"event": "turn", "at": at.isoformat(), "speaker": "caller", "text": text}
        turn |= {"late": True} if is_late else {}
        self._share_row(turn)
        self._publish(turn)
        if not is_late:
            self.turn_ended()

    def agent_said(
        self, answer: int, text: str, at: datetime, *, by_operator: bool = False, before_answer: bool = False
    ) -> None:
        """
        A piece of the agent's answer of that number.

        The first piece is stored at once. It is published with its latency, when its audio has been sent, unless
        something else is published first: then the latency follows as an event of its own. A piece that only puts
        the answer off has none.
        """
        self._release_held()
        self._awaits_audio = None
        piece = {"event": "turn", "at": at.isoformat(), "speaker": "agent", "text": text, "answer": answer}
        piece |= {"by_operator": True} if by_operator else {}
        self._share_row(piece)
        if before_answer:
            self._sounded, self._latency = False, {}
            self._publish(piece)
            return
        if self._sounded:
            self._publish(piece if by_operator else piece | self._latency)
            self._latency = {}
            return
        self._held = piece
        if self._stores_words:
            self._held_row = self._row()
            self._publisher.log.append(self._held_row, {**piece, **self._about})

    def cut_off(self, answer: int, heard: str, unheard: str) -> None:
        """Of the answer of that number, only `heard` was played."""
        words = {"answer": answer, "heard": heard, "unheard": unheard}
        self._share_row({"event": "interruption", **words})
        self.publish("interruption", **words)

    def set_off_record(self, off: bool) -> None:
        """From now on words are shown and not stored, or stored again."""
        self._release_held()
        if off != self._off_record:
            self._off_record = off
            self._append({"off_record": off})

    def retract(self, session: VoiceSession, rows: Sequence[Row]) -> None:
        """Delete the session's retracted turns. `rows` are those that stand, for other nodes."""
        if self._kept:
            self._publisher.log.retract(self._row(), session.taken_back, rows_beside_turns(session))
            for row in ({"restart": True}, *rows):
                self._share(self._about["session"], orjson.dumps(row))

    # What recovery needs besides turns

    def set_state(self, state: Mapping[str, Any]) -> None:
        """What the agent's functions keep of the caller, as of now."""
        self._append({"state": dict(state)})

    def set_identity(self, caller: str, number: str) -> None:
        """The key under which the call's memory is kept, as of now."""
        self._append({"known_as": [caller, number]})

    def set_trust(self, trust: TrustLevel) -> None:
        """The trust level of the call, as of now."""
        self._append({"trust": int(trust)})

    def set_consent(self, consent: Consent) -> None:
        """The consent to the recording, as of now."""
        self._append({"consent": consent})

    def set_voicemail(self, voicemail: Voicemail) -> None:
        """A mailbox answered, or has the message now."""
        self._append({"voicemail": voicemail})
        self.publish("voicemail", state=str(voicemail))

    # Latency

    def turn_ended(self) -> None:
        """The caller's turn is over; its text may come later than the answer to it."""
        self._sounded, self._latency, self._awaits_audio = False, {}, None

    def first_audio_sent(self, measured: ResponseTime | None, model: ModelName | None = None) -> None:
        """
        The first audio of an answer was sent. `measured` is None for a greeting, which answers nothing.

        `model`: the engine's own, if that answers.
        """
        self._sounded = True
        latency: dict[str, Any] = {}
        if measured is not None:
            stages = {stage: getattr(measured, stage) for stage in STAGES}
            latency = {"latency": measured.first_frame, "counted_from": measured.counted_from, "stages": stages}
            latency |= model._asdict() if model is not None else {}
        if self._held is not None:
            self._held |= latency
            self._release_held()
            self._awaits_audio = None
        elif self._awaits_audio is not None and latency:
            self.publish("answer_started", answer=self._awaits_audio, **latency)
            self._awaits_audio = None
        else:
            self._latency = latency

    def model_finished(self, attempt: ModelAttempt) -> None:
        """A request to a language model of the agent is over. This releases no held answer."""
        fields = {"outcome": attempt.outcome, "error": attempt.error, "seconds": attempt.seconds}
        at = datetime.now(UTC).isoformat()
        about: dict[str, Any] = {**attempt.model._asdict(), **fields, "first_token": attempt.first_token}
        if attempt.usage is not None:
            about |= {"input_tokens": attempt.usage.prompt_tokens, "output_tokens": attempt.usage.completion_tokens}
            about["cached_tokens"] = attempt.usage.cached_tokens
        self._publish({"event": "model_finished", "at": at, **about})

    @property
    def _stores_words(self) -> bool:
        return self._kept and not self._off_record

    def _row(self) -> LogRow:
        return LogRow(self._about["session"], self._about["caller"], self._about["agent"])

    def _append(self, row: Row) -> None:
        if self._kept:
            self._publisher.log.append(self._row(), row)
            self._share(self._about["session"], orjson.dumps(row))

    def _share_row(self, row: Row) -> None:
        if self._stores_words:
            self._share(self._about["session"], orjson.dumps(row))

    def _release_held(self) -> None:
        held, row = self._held, self._held_row
        self._held = self._held_row = None
        if held is not None:
            self._awaits_audio = held["answer"]
            self._publish(held, row)

    def _publish(self, event: dict[str, Any], held: LogRow | None = None) -> None:
        self._publisher.publish({**event, **self._about}, kept=self._stores_words, held=held)
