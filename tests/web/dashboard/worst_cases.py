"""As much as a busy gateway may have: live calls, a long recorded call, a caller with much memory, tokens."""

import base64
import contextlib
import random
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import orjson
from starlette.applications import Starlette

from gateway.audio import linear_to_mulaw
from gateway.calls.call_table import CallTable
from gateway.calls.operator import OperatorControl
from gateway.cluster.node import SingleNode
from gateway.cluster.store import LocalStore
from gateway.finalization.summary.call_summary import CallSummary
from gateway.history.api_tokens import TokenScope, TokenTable
from gateway.history.call_log import FILE_NAME, Cursor, Row, open_call_log
from gateway.history.live_events import EventPublisher, NoCallLog
from gateway.history.stores import open_local_store
from gateway.memory.facts import CallerFact, FactStore
from gateway.memory.pinned_topics import PinnedTopicStore
from gateway.memory.state import CallerStateStore
from gateway.response_time import CountedFrom, ResponseTime
from gateway.session import Consent, EndReason, Speaker, Turn, VoiceSession
from gateway.settings import Secret
from gateway.web.auth import Authenticator
from gateway.web.dashboard.html import Pages
from gateway.web.dashboard.live_pages import LivePages
from gateway.web.login import LoginGuard, SealedParam
from gateway.web.login_sessions import LoginSessions
from gateway.web.request import PublicUrl
from tests.web.dashboard.examples import keep

CALLER = "+12025550198"
NAME = "Wilhelmina Featherstonehaugh"
ASKED = "Could you tell me whether the shop has the wider tyres for my touring bike, number {}, in stock again?"
ANSWER = "Yes, number {} came in this morning. We can fit them on Thursday at ten, or on Friday in the afternoon."
LOUD = base64.b64encode(bytes([linear_to_mulaw(8000), linear_to_mulaw(-8000)]) * 4800).decode()
"""1.2 seconds of speech."""
TIMES = ResponseTime(0.41, 0.5, 0.52, 0.93, 1.2, 1.21, counted_from=CountedFrom.VOICE)


def spoken(count: int, since: datetime) -> list[Turn]:
    """Question and answer in turn, every six seconds."""
    return [
        Turn(
            Speaker.AGENT if number % 2 else Speaker.CALLER,
            (ANSWER if number % 2 else ASKED).format(number),
            since + timedelta(seconds=6 * number + 4),
        )
        for number in range(count)
    ]


def rows_of(turns: Sequence[Turn]) -> list[Row]:
    """As the call log has them, each answer with its response time."""
    stages = {name: value for name, value in TIMES.as_json().items() if name != "counted_from"}
    timed = {"latency": TIMES.first_frame, "stages": stages, "counted_from": "voice"}
    rows: list[Row] = []
    for number, turn in enumerate(turns):
        row = {"event": "turn", "speaker": turn.speaker, "text": turn.text, "at": turn.at.isoformat()}
        rows.append(row if turn.speaker is Speaker.CALLER else {**row, "answer": number, **timed})
    return rows


# A call


async def fill_long_call(
    data_dir: Path, record_dir: Path, *, turns: int, now: datetime, caller: str = CALLER
) -> VoiceSession:
    """One with a recording, live events, and a function call before every eighth answer."""
    session = VoiceSession(agent="maya", caller=caller, carrier="twilio", started_at=now - timedelta(seconds=6 * turns))
    session.turns = spoken(turns, session.started_at)
    session.ended_at, session.end_reason, session.consent = now, EndReason.CALLER_HUNG_UP, Consent.AGREED
    session.timings = [TIMES.as_json()] * (turns // 2)
    store = await open_local_store(data_dir)
    await keep(store, session, CallSummary(NAME, ("Tyres",) * 8, (), ("Order tyres",) * 8, (), "Calls again.", "test"))
    await store.close()
    events: list[Row] = [{"event": "answered", "at": session.started_at.isoformat()}]
    for number, row in enumerate(rows_of(session.turns)):
        if number % 16 == 15:
            words = {"arguments": '{"size": "700x42"}', "result": "12 in stock"}
            events.append(
                {"event": "function_finished", "at": row["at"], "function": "find_part", "seconds": 0.4} | words
            )
        events.append(row)
    with contextlib.closing(open_call_log(data_dir / FILE_NAME)) as log, log:
        for number, event in enumerate(events, Cursor.now().position):
            row = (session.id, caller, "maya", number, orjson.dumps(event).decode())
            log.execute("INSERT INTO entries (session, caller, agent, position, entry) VALUES (?, ?, ?, ?, ?)", row)
    write_recording(record_dir / f"{session.uuid}.jsonl", session)
    return session


def write_recording(path: Path, session: VoiceSession) -> None:
    frames = []
    for turn in session.turns:
        at = (turn.at - session.started_at).total_seconds()
        media = {"from": "carrier", "frame": {"event": "media", "media": {"payload": LOUD}}}
        sound = media if turn.speaker is Speaker.CALLER else {"from": "engine", "audio": LOUD}
        # Each with a pause in it.
        frames += [{"t": at, **sound}, {"t": at + 1.8, **sound}]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"\n".join(map(orjson.dumps, frames)) + b"\n")


# A caller


async def fill_memory(data_dir: Path, *, facts: int, pins: int, state: int, now: datetime) -> int:
    """Of CALLER, who needs a call for a page. Returns how many facts are kept: alike ones are merged."""
    store = await open_local_store(data_dir)
    session = VoiceSession(agent="maya", caller=CALLER, carrier="twilio", started_at=now)
    learned = [CallerFact(f"Owns {made_up_words(number)}", "other", 0.9, (1,)) for number in range(facts)]
    await FactStore(store).learn(session, learned, now)
    known = await FactStore(store).known("maya", CALLER, facts)
    for number in range(pins):
        text = f"The repair of bike {number} waits for parts from the supplier, who answers within a week."
        items = [f"Ask the supplier about part {number}-{item}" for item in range(4)]
        await PinnedTopicStore(store).pin("maya", CALLER, f"Bike {number}", about=text, status=text, open_items=items)
    values = {f"order_{number}": "A note of a function. " * 30 for number in range(state)}
    await CallerStateStore(store).save("maya", CALLER, values, session_id="voice-session:1", now=now)
    await store.close()
    return len(known)


def made_up_words(seed: int) -> str:
    """Nine, so that no two texts are alike: similar facts become one."""
    rng = random.Random(seed)
    return " ".join("".join(rng.choice(letters) for letters in ("bdfgklmnprst", "aeiou") * 3) for _ in range(9))


async def fill_tokens(data_dir: Path, count: int) -> None:
    store = await open_local_store(data_dir)
    table = TokenTable(store)
    for number in range(count):
        label = f"Assistant of workplace {number}, second floor"
        await table.create(TokenScope.MCP, label=label, agent="maya", caller=CALLER)
    await store.close()


# Live calls


class _BusyNeighbours(SingleNode):
    """A cluster whose other nodes have these calls."""

    def __init__(self, sessions: list[VoiceSession]) -> None:
        self.sessions = sessions

    async def sessions_elsewhere(self) -> list[VoiceSession]:
        return self.sessions


class _FullLog(NoCallLog):
    """Has the turns of these calls."""

    def __init__(self, sessions: list[VoiceSession]) -> None:
        self._rows = {session.id: rows_of(session.turns) for session in sessions}

    async def rows(self, session_id: str) -> list[Row]:
        return self._rows[session_id]


class _Unused:
    """The stream of events and the set-up, which the page does not show."""

    stream = None


def live_sessions(count: int, *, turns: int = 12) -> list[VoiceSession]:
    now = datetime.now(UTC)
    sessions = []
    for number in range(count):
        since = now - timedelta(seconds=80 + count - number)
        session = VoiceSession("maya", f"+1202555{number:04}", "twilio", started_at=since)
        session.turns = spoken(turns, since)
        sessions.append(session)
    return sessions


@contextlib.asynccontextmanager
async def a_busy_live_page(data_dir: Path, token: str, sessions: list[VoiceSession]) -> AsyncIterator[Starlette]:
    """An application with a login and the page of live calls."""
    admin, store = Secret(token), await open_local_store(data_dir)
    logins = await LocalStore.open(data_dir / "logins.db")
    tokens = TokenTable(store)
    auth = Authenticator(admin, None, tokens)
    guard = LoginGuard(auth, LoginSessions(logins, tokens, admin), SealedParam(admin), Pages(), PublicUrl(""))
    operator = OperatorControl(CallTable(60.0), _BusyNeighbours(sessions))
    publisher = EventPublisher(_FullLog(sessions))
    pages = LivePages(guard, store, operator, publisher, _Unused(), _Unused(), listen_in=True)
    show = next(route for route in pages.routes() if route.path == "/")
    yield Starlette(routes=[*guard.routes(), show])
    await logins.close()
    await store.close()
