"""A store with example calls in it: few with everything, for pages to look at, or very many."""

import asyncio
import random
import shutil
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import orjson

from gateway.finalization.archive import Archive
from gateway.finalization.document import archive_text, call_document, spoken_lines
from gateway.finalization.summary.call_summary import CallSummary
from gateway.history.calls_table import CallsTable, finished_call, insert_call
from gateway.history.stores import open_local_store
from gateway.memory.facts import CallerFact, FactStore
from gateway.memory.state import CallerStateStore
from gateway.memory.stores.database import Connection
from gateway.memory.stores.documents import index_text
from gateway.memory.stores.sqlite import SqliteStore
from gateway.response_time import ResponseTime
from gateway.session import Consent, EndReason, Speaker, Turn, VoiceSession

RECORDED = Path("gateway/replay/calls/first.jsonl")
BARGE_IN = Path("tests/recordings/barge-in.jsonl")

_PEOPLE = (
    ("Ana Ruiz", "+12025550143", "new brake pads for a road bike", "Prefers a text message when the bike is ready"),
    ("Tom Becker", "+12025550117", "a flat tyre on a cargo bike", "Can only come after five in the afternoon"),
    ("Mei Lin", "+12025550128", "the price of a tune-up", "Rides a green city bike"),
    ("Sam Okafor", "+12025550162", "opening hours on Friday", "Lives two streets from the workshop"),
    ("Julia Novak", "+12025550175", "a loaner for next week", "Needs a bike with low entry"),
    ("", "+12025550190", "whether children's bikes are repaired", ""),
    ("Omar Haddad", "+12025550134", "picking up a repaired wheel", "Pays by invoice, through his company"),
    ("Grace Kim", "+12025550156", "moving an appointment to Thursday", "Speaks Korean and English"),
    ("Lena Fischer", "+12025550109", "a squeaking chain", "Commutes by bike every day"),
    ("", "+12025550181", "the way to the workshop", ""),
    ("Pedro Alves", "+12025550122", "winter tyres", "Prefers to be called Pete"),
    ("Nora Singh", "+12025550168", "a second-hand bike for her son", "Her son is nine years old"),
)
_LINES = (
    ("caller", "Hi, I am calling about {topic}."),
    ("agent", "Of course, let me look at that for you."),
    ("caller", "When could you take a look?"),
    ("agent", "I have Thursday at ten, or Friday in the afternoon. Which one would suit you better?"),
    ("caller", "Thursday at ten, please."),
    ("agent", "You are booked for Thursday at ten. See you then."),
)


def a_timing(rng: random.Random) -> dict[str, Any]:
    words, model, sound = rng.uniform(0.08, 0.25), rng.uniform(0.25, 0.6), rng.uniform(0.12, 0.3)
    slow = rng.choice((0, 0, 0, 0, 0, 0, 0, 0, 0, 1.6))
    end = rng.uniform(0.3, 0.7)
    times = (
        0.0,
        words,
        words + 0.02,
        words + model + slow,
        words + model + slow + sound,
        words + model + slow + sound + 0.01,
    )
    return ResponseTime(*(round(end + seconds, 4) for seconds in times)).as_json()


def a_call(
    rng: random.Random, started_at: datetime, place: int | None = None, **fields
) -> tuple[VoiceSession, CallSummary]:
    name, number, topic, fact = _PEOPLE[rng.randrange(len(_PEOPLE)) if place is None else place % len(_PEOPLE)]
    session = VoiceSession(agent="maya", caller=number, carrier=rng.choice(("twilio", "telnyx")), started_at=started_at)
    session.id = f"voice-session:{uuid.UUID(int=rng.getrandbits(128), version=4)}"
    at = 1.0
    for speaker, text in _LINES:
        at += rng.uniform(3, 7)
        moment = started_at + timedelta(seconds=at)
        session.turns.append(Turn(Speaker(speaker), text.format(topic=topic), moment))
    session.ended_at = started_at + timedelta(seconds=at + rng.uniform(3, 90))
    reasons = (
        [EndReason.CALLER_HUNG_UP] * 14 + [EndReason.AGENT_HUNG_UP] * 8 + [EndReason.TRANSFERRED, EndReason.ENGINE_LOST]
    )
    session.end_reason = rng.choice(reasons)
    session.timings = [a_timing(rng) for _ in range(3)]
    for field, value in fields.items():
        setattr(session, field, value)
    summary = CallSummary(
        caller_name=name,
        topics=(f"{topic[0].upper()}{topic[1:]}",),
        decisions=("The appointment is on Thursday at ten",),
        action_items=("Send a confirmation",),
        facts=(fact,) if fact else (),
        context=f"{name or 'The caller'} comes on Thursday at ten about {topic}.",
        written_by="claude-haiku-5-5",
        caller_facts=(CallerFact(fact, "preference", 0.8, (1,)),) if fact else (),
    )
    return session, summary


async def keep(
    store: SqliteStore, session: VoiceSession, summary: CallSummary, *, archive: Archive | None = None
) -> None:
    """What an ending leaves behind."""
    document = await store.create(call_document(session, summary, UTC))
    await FactStore(store).learn(session, summary.caller_facts, session.started_at)
    if session.state:
        await CallerStateStore(store).save(
            session.agent, session.caller, session.state, session_id=session.id, now=session.started_at
        )
    await CallsTable(store).write(session, document_id=document.id, summary_by=summary.written_by)
    if archive is not None:
        await archive.write(session.uuid, archive_text(spoken_lines(session.turns)))


async def fill(data_dir: Path, archive_dir: Path, record_dir: Path, *, now: datetime, calls: int = 150) -> VoiceSession:
    """A month of calls, the newest of them recorded; that one."""
    rng = random.Random(7)
    store, archive = await open_local_store(data_dir), Archive(archive_dir, retention_days=7)
    for index in range(calls, 0, -1):
        ago = timedelta(hours=4.6 * index + rng.uniform(0, 14))
        session, summary = a_call(rng, now - ago, index, state={"bike": "road, size 54"} if index % 9 == 0 else {})
        await keep(store, session, summary, archive=archive if index < 20 else None)
    session = await _recorded(store, archive, record_dir, now)
    await store.close()
    return session


async def _recorded(store: SqliteStore, archive: Archive, record_dir: Path, now: datetime) -> VoiceSession:
    """The call of a recording, moved to half an hour ago."""
    session = await asyncio.to_thread(_move_recording, record_dir)
    summary = CallSummary(
        caller_name="Ana Ruiz",
        topics=("New brake pads for a road bike", "Bringing it in this week"),
        decisions=("Booked for Thursday at ten in the morning",),
        action_items=("Send Ana a text message when the bike is ready",),
        facts=("Ana can't take calls at work",),
        context="Ana brings her road bike on Thursday at ten for new brake pads, and waits for a text message.",
        written_by="claude-haiku-5-5",
        caller_facts=(CallerFact("Can't take calls at work", "constraint", 0.9, (3,)),),
    )
    length = session.ended_at - session.started_at
    session.started_at = now - timedelta(minutes=25)
    session.ended_at = session.started_at + length
    session.consent = Consent.AGREED
    # As the recording sounds.
    waits = (1.08, 1.09, 0.95)
    session.timings = [ResponseTime(0.4, 0.41, first_token=wait - 0.3, first_frame=wait).as_json() for wait in waits]
    [fact, *_] = await FactStore(store).known("maya", session.caller, 9)
    item = {"kind": "fact", "id": fact.id, "text": fact.text, "session": fact.session_id}
    item |= {"turns": [1], "age_days": 4, "score": fact.confidence, "tokens": 12}
    session.receipt = {"tier": "everything", "block": f"<caller_facts>\n{fact.text}\n</caller_facts>", "items": [item]}
    await keep(store, session, summary, archive=archive)
    return session


def _move_recording(record_dir: Path) -> VoiceSession:
    """The recording among others, and the session it closes with."""
    lines = map(orjson.loads, RECORDED.read_bytes().splitlines())
    [ended] = [line["content"] for line in lines if line.get("note") == "ended"]
    session = VoiceSession.from_json(ended)
    record_dir.mkdir(parents=True, exist_ok=True)
    shutil.copy(RECORDED, record_dir / f"{session.uuid}.jsonl")
    return session


async def fill_many(data_dir: Path, count: int, *, now: datetime) -> None:
    """So many calls of a tenth as many callers, in the last 90 days, written as fast as the store takes them."""
    rng = random.Random(1)
    store = await open_local_store(data_dir)
    block = "<caller_facts>\n" + "Something that is known of this caller.\n" * 40 + "</caller_facts>"
    calls, documents = [], []
    for index in range(count):
        started_at = now - timedelta(days=90) * (1 - (index + 1) / (count + 1))
        session, summary = a_call(rng, started_at)
        session.caller = f"+1202555{rng.randrange(count // 10):04}"
        document = call_document(session, summary, UTC)
        documents.append(
            (
                session.uuid,
                document.title,
                document.content,
                document.source,
                orjson.dumps(document.tags).decode(),
                session.started_at.isoformat(timespec="microseconds"),
                session.started_at.isoformat(timespec="microseconds"),
                orjson.dumps(document.metadata).decode(),
                session.id,
                index_text(document.tags),
            )
        )
        session.timings *= 3
        session.receipt = {"tier": "everything", "block": block, "items": [{"kind": "call", "session": session.id}]}
        calls.append(finished_call(session, document_id=session.uuid, summary_by="test"))

    def work(connection):
        fields = "id, title, content, source, tags, created_at, updated_at, metadata, source_id, scope"
        connection.executemany(f"INSERT INTO documents ({fields}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", documents)
        for call in calls:
            insert_call(connection, call)

    await store.run(work)
    await store.close()


def fill_audit_log(connection: Connection, count: int) -> None:
    """So many entries, each by another login, without a chain."""
    (last,) = connection.execute("SELECT coalesce(max(number), 0) FROM audit_log").fetchone()
    statement = "INSERT INTO audit_log VALUES (?, ?, ?, 'caller.erase', 'done', 'maya', '', '…0143', '', '', ?, '', '')"
    rows = [
        (number, "2026-11-01T10:00:00.000000+00:00", f"login:{number:08x}", f"192.0.2.{number % 250}")
        for number in range(last + 1, last + 1 + count)
    ]
    connection.executemany(statement, rows)
