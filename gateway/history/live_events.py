"""
The live feed: what happens in calls, told to whoever watches.

A call tells and goes on at once; nobody is waited for. What is told is kept in the log of events (`event_log.py`), or
in Redis where nodes share one, and read from there. Words go to readers, never to logs. Of a caller who must stay
nameless neither words nor number are kept: they are shown by the process that has the call, while it runs.
"""

import itertools
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol

import orjson

from gateway.history.event_store import Cursor, Entry, EventSource, EventStore
from gateway.session import Turn, VoiceSession

EVENTS: Final[Mapping[str, str]] = {
    "dialling": "we call somebody; it is answered when they pick up",
    "unanswered": "they do not; `reason`",
    "ringing": "a call was let in; `called`",
    "refused": "a call was not let in; `reason`",
    "answered": "its media is there; `attempt` counts new streams in a row, from 0",
    "memory": "what the agent was told of earlier calls: `facts`, `calls`, `tier`, the `seconds` that loading took, "
    "`outcome` (loaded, nothing, late, failed, off)",
    "turn": "one side spoke: `speaker`, `text`; an agent's `answer` may come in several pieces, the first with its "
    "`latency` in seconds from the end of the caller's speech and the `stages` of it",
    "interruption": "the caller did not hear all of an `answer`: `heard`, `unheard`",
    "function_called": "the agent calls a `function`",
    "function_finished": "it has its answer: `function`, `ok`, `seconds`",
    "engine_lost": "the voice engine is gone and is connected again; `reason`",
    "engine_back": "it is there again",
    "media_lost": "the stream is over, and the caller may still be there; `reason`",
    "error": "something went wrong: `what`, `reason`",
    "hangup": "the call is over: `reason`, `seconds`, `turns`",
    "step": "a step of the ending: `step`, `state` (done, waits, refused), `reason`",
    "summary": "the summary is stored: `by`, `document`",
    "finished": "every step is done, or rests until it is tried again; `problem`",
}
"""Every event, and what it holds beside `at`, `event`, `session`, `agent`, `caller` and `carrier`."""

MOST_UNKEPT: Final = 1000
_PRIVATE: Final = ("caller", "text", "heard", "unheard")


class Share(Protocol):
    """Tells other nodes."""

    def __call__(self, event: bytes) -> None: ...


class EventPublisher:
    """
    Everything that this process tells, and all that can be read of it and of others.

    `log` keeps this process's events; without it nothing is told. `source` is what is read: that log, unless nodes
    share another, which `share` writes. `listener` is told of each event at once.
    """

    def __init__(
        self,
        log: EventStore | None = None,
        source: EventSource | None = None,
        share: Share | None = None,
        *,
        listener: Callable[[Mapping[str, Any]], None] | None = None,
    ) -> None:
        self._log = log
        self._source = source or log
        self._share = share
        self._listener = listener
        self._closed = False
        self._numbers = itertools.count()
        self._process = secrets.token_hex(4)
        self._unkept: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._farewells: set[Callable[[], object]] = set()

    # Whoever has something to tell

    def of(self, session: VoiceSession, *, kept: bool = True) -> "CallEvents":
        number = session.number or session.caller
        return self.call(session.id, session.agent, number, session.carrier, kept=kept and bool(session.caller))

    def call(self, session_id: str, agent: str, caller: str, carrier: str, *, kept: bool) -> "CallEvents":
        """One call's side. Neither words nor number are kept of a caller who must stay nameless."""
        about = {"session": session_id, "agent": agent, "caller": caller, "carrier": carrier}
        return CallEvents(self, about, kept=kept)

    def publish(self, event: dict[str, Any], *, kept: bool) -> None:
        if self._log is None:
            return
        if self._listener is not None:
            self._listener(event)
        stored = event if kept else self._set_aside(event)
        content = orjson.dumps(stored)
        self._log.append(stored, content)
        if self._share is not None:
            self._share(content)

    def call_over(self, session_id: str) -> None:
        if self._log is not None:
            self._log.call_over(session_id)

    def unsay(self, session_id: str, still_said: Sequence[str]) -> None:
        if self._log is not None:
            self._log.unsay(session_id, still_said)

    async def flushed(self) -> None:
        """Wait until everything told so far is on disk."""
        if self._log is not None:
            await self._log.flushed()

    # Whoever wants to know

    @property
    def is_open(self) -> bool:
        return self._source is not None and not self._closed

    async def head(self) -> Cursor:
        """The place of the newest event there is."""
        return await self._source.head() if self._source is not None else Cursor()

    async def after(self, place: Cursor, *, wait: float = 0.0) -> list[Entry]:
        """The next events, oldest first; see EventSource."""
        if self._source is None:
            return []
        return [(cursor, self._whole(event)) for cursor, event in await self._source.after(place, wait=wait)]

    def at_close(self, graceful_hangup: Callable[[], object]) -> Callable[[], None]:
        """Have it called when the feed is closed; call the result when that is not wanted any more."""
        self._farewells.add(graceful_hangup)
        return lambda: self._farewells.discard(graceful_hangup)

    def close(self) -> None:
        """The server stops: readers have an end to their streams."""
        self._closed = True
        for graceful_hangup in list(self._farewells):
            graceful_hangup()

    # Itself

    def _set_aside(self, event: dict[str, Any]) -> dict[str, Any]:
        """What may be kept of an event; the rest is remembered here for a while."""
        key = f"{self._process}-{next(self._numbers)}"
        self._unkept[key] = event
        if len(self._unkept) > MOST_UNKEPT:
            self._unkept.popitem(last=False)
        return {**{name: value for name, value in event.items() if name not in _PRIVATE}, "caller": "", "unkept": key}

    def _whole(self, event: dict[str, Any]) -> dict[str, Any]:
        return self._unkept.get(event.pop("unkept", ""), event)


class CallEvents:
    """One call's side of the feed. Every method returns at once."""

    def __init__(self, call_events: EventPublisher, about: dict[str, str], *, kept: bool) -> None:
        self._call_events = call_events
        self._about = about
        self._kept = kept
        self._off_record = False
        self._held: dict[str, Any] | None = None
        self._sounded = False
        self._latency: dict[str, Any] = {}

    def tell(self, event: str, **fields: Any) -> None:
        """Something happened; `EVENTS` says what can."""
        self._let_go()
        self._publish({"event": event, "at": datetime.now(UTC).isoformat(), **fields})

    # The transcript's side

    def caller_said(self, text: str, at: datetime) -> None:
        self.tell("turn", speaker="caller", text=text)
        self._sounded, self._latency = False, {}

    def agent_said(self, answer: int, text: str, at: datetime) -> None:
        """A piece of an answer. The first one waits for its sound, and so for its latency."""
        self._let_go()
        piece = {"event": "turn", "at": at.isoformat(), "speaker": "agent", "text": text, "answer": answer}
        if self._sounded:
            self._publish(piece | self._latency)
            self._latency = {}
        else:
            self._held = piece

    def cut_off(self, answer: int, heard: str, unheard: str) -> None:
        self.tell("interruption", answer=answer, heard=heard, unheard=unheard)

    def record_is(self, *, off: bool) -> None:
        """What is said off the record is shown, and not kept."""
        self._let_go()
        self._off_record = off

    def unsay(self, turns: Iterable[Turn]) -> None:
        """Something was taken back; these are the turns that still stand."""
        self._call_events.unsay(self._about["session"], [f"{turn.text} {turn.unheard}" for turn in turns])

    # The turn clock's side

    def sounds(self, stages: Mapping[str, float | None] | None) -> None:
        """The first sound of an answer has left; None for one that answers nobody, such as the greeting."""
        self._sounded = True
        latency = {"latency": stages["first_frame"], "stages": dict(stages)} if stages is not None else {}
        if self._held is not None:
            self._held |= latency
            self._let_go()
        else:
            self._latency = latency

    # Itself

    def _let_go(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            self._publish(held)

    def _publish(self, event: dict[str, Any]) -> None:
        self._call_events.publish({**event, **self._about}, kept=self._kept and not self._off_record)
