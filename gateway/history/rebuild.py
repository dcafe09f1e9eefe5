"""
Derives summaries, facts and topics of past calls again, from what is kept of them: call log, transcript, recording.

A plan changes nothing. What it replaces is kept for 30 days, so that it can be undone.
"""

import asyncio
import difflib
import zlib
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import orjson

from gateway.calls.recording_files import RecordingCipher
from gateway.errors import DocumentNotFound, LlmError
from gateway.finalization.document import redact_turns, spoken_lines
from gateway.finalization.job import FinalizationJob
from gateway.finalization.steps import FinalizationSteps
from gateway.finalization.summary.call_summary import CallSummary
from gateway.history.calls_table import CallRowFilter, FinishedCall
from gateway.history.erasure import DataLocations
from gateway.history.queries import CallHistory
from gateway.memory.memory_log import NewEntry
from gateway.memory.stores.database import Connection
from gateway.memory.stores.documents import NewDocument
from gateway.memory.summary_parser import name_from_earlier_call
from gateway.session import EndReason, Speaker, TrustLevel, Turn, VoiceSession

_ALL: Final = 1_000_000


@dataclass(frozen=True)
class RebuiltCall:
    """
    One call and what a rebuild would make of it.

    `problem` says why it stays as it is: its words are no longer kept, or the language model failed.
    """

    session: VoiceSession
    document_id: str = ""
    summary: CallSummary | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    problem: str = ""

    @property
    def is_changed(self) -> bool:
        return self.before != self.after

    def as_json(self) -> dict[str, Any]:
        return {"session": self.session.id, "caller": self.session.caller, "diff": self.diff, "problem": self.problem}

    @property
    def diff(self) -> list[str]:
        """The lines of document, facts and topics that change, in unified format."""
        return list(difflib.unified_diff(self.before, self.after, "before", "after", lineterm="", n=1))


class MemoryRebuild:
    """Raises StoreUnavailable."""

    def __init__(self, steps: FinalizationSteps, history: CallHistory, places: DataLocations) -> None:
        self._steps = steps
        self._memory = steps.memory
        self._history = history
        self._places = places

    async def plan(self, caller: str, agent: str = "") -> AsyncIterator[RebuiltCall]:
        """Each call of a caller, with one agent or all, the oldest first. Reverted calls are left out."""
        calls = await self._memory.calls.newest(CallRowFilter(caller=caller, agent=agent), limit=_ALL)
        for call in reversed(calls):
            if not await self._memory.facts.is_reverted(call.session_id):
                yield await self._plan(call)

    async def _plan(self, call: FinishedCall) -> RebuiltCall:
        session = _session(call, await asyncio.to_thread(redact_turns, await self._words(call)))
        if not session.turns:
            return RebuiltCall(session, problem="its words are no longer kept")
        try:
            document = await self._memory.documents.get(call.document_id)
        except DocumentNotFound:
            return RebuiltCall(session, problem="its document was deleted")
        session.known_name = name_from_earlier_call(document)
        session.trust = TrustLevel.of(document.metadata.get("trust"))
        try:
            summary = await self._steps.summarize(session)
        except LlmError as error:
            return RebuiltCall(session, problem=str(error))
        facts = [entry.content["text"] for entry in await self._memory.facts.session_entries(session.id)]
        topics = [_topic(entry.content) for entry in await self._memory.topics.session_entries(session.id)]
        new = self._steps.document(session, summary)
        return RebuiltCall(
            session,
            document.id,
            summary,
            before=_lines(document.content, facts, topics),
            after=_lines(
                new.content,
                [fact.text for fact in summary.caller_facts],
                [_topic(asdict(topic)) for topic in summary.running_topics],
            ),
        )

    async def _words(self, call: FinishedCall) -> list[Turn]:
        """What was said, as far as it is still kept. A transcript without times is from when the call started."""
        details = await self._history.call(call.session_id)
        turns = [
            Turn(
                Speaker(turn["speaker"]),
                turn["text"],
                datetime.fromisoformat(turn["at"] or call.started_at),
                turn["unheard"],
            )
            for turn in (details or {}).get("transcript", ())
        ]
        if not turns and self._places.record_dir is not None:
            path = self._places.record_dir / f"{call.uuid}.jsonl"
            return await asyncio.to_thread(_recorded_turns, path, self._places.recordings)
        return turns

    async def apply(self, calls: Sequence[RebuiltCall]) -> None:
        """Store what was planned, after a copy of what it replaces. The calls are all of one caller."""
        scopes: dict[tuple[str, str], dict[str, Any]] = {}
        for call in calls:
            saved = scopes.setdefault((call.session.agent, call.session.caller), {})
            saved[call.session.id] = await self._saved(call)
        await self._memory.documents.run(lambda connection: _keep_undo(connection, scopes))
        for call in calls:
            if call.summary is not None:
                new = self._steps.document(call.session, call.summary)
                await self._memory.documents.replace(call.document_id, new.content, title=new.title)
                job = FinalizationJob(call.session, summary=call.summary)
                await self._steps.learn_facts(job)
                await self._steps.note_topics(job)
                await self._memory.calls.summary_rewritten(call.session.id, call.summary.written_by)
                await self._send_remote(call.session.id, new)

    async def undo(self, caller: str, agent: str = "") -> int:
        """Restore what the last rebuild of a caller replaced. Returns how many calls."""
        query = "SELECT agent, content FROM rebuild_undo WHERE caller = ? AND ? IN ('', agent)"
        rows = await self._memory.documents.fetch(query, caller, agent)
        restored = 0
        for name, content in rows:
            for session_id, saved in orjson.loads(zlib.decompress(content)).items():
                started_at = datetime.fromisoformat(saved["started_at"])
                session = VoiceSession(name, caller, "", id=session_id, started_at=started_at)
                if await self._memory.facts.is_reverted(session_id):
                    continue
                try:
                    await self._memory.documents.replace(saved["document_id"], saved["content"], title=saved["title"])
                except DocumentNotFound:
                    continue
                now = datetime.now(UTC)
                await self._memory.facts.replace_session(session, _entries(saved["facts"]), now)
                await self._memory.topics.replace_session(session, _entries(saved["topics"]), now)
                await self._memory.calls.summary_rewritten(session_id, saved["summary_by"])
                await self._send_remote(session_id, NewDocument(saved["title"], saved["content"]))
                restored += 1
        statement = "DELETE FROM rebuild_undo WHERE caller = ? AND ? IN ('', agent)"
        await self._memory.documents.change(statement, caller, agent)
        return restored

    async def _saved(self, call: RebuiltCall) -> dict[str, Any]:
        document = await self._memory.documents.get(call.document_id)
        row = await self._memory.calls.find(call.session.id)
        return {
            "started_at": call.session.started_at.isoformat(),
            "document_id": document.id,
            "title": document.title,
            "content": document.content,
            "summary_by": row.summary_by if row else "",
            "facts": [_stored(entry) for entry in await self._memory.facts.session_entries(call.session.id)],
            "topics": [_stored(entry) for entry in await self._memory.topics.session_entries(call.session.id)],
        }

    async def _send_remote(self, session_id: str, new: NewDocument) -> None:
        """Update the copy in the remote store, if there is one."""
        if (remem := self._steps.remem) and (remote_id := await remem.find_by_session(session_id)):
            await remem.replace(remote_id, new, timeout=10.0)


def _recorded_turns(path: Path, cipher: RecordingCipher) -> list[Turn]:
    """The turns of a recorded call; none if there is no recording, or it stops before the end of the call."""
    if path.is_file():
        for line in cipher.lines(path):
            if line.find(b'"ended"', 0, 100) >= 0 and (row := orjson.loads(line)).get("note") == "ended":
                return VoiceSession.from_json(row["content"]).turns
    return []


def _session(call: FinishedCall, turns: list[Turn]) -> VoiceSession:
    started_at = datetime.fromisoformat(call.started_at)
    return VoiceSession(
        agent=call.agent,
        caller=call.caller,
        carrier=call.carrier,
        id=call.session_id,
        started_at=started_at,
        ended_at=started_at + timedelta(seconds=call.seconds),
        end_reason=EndReason(call.outcome) if call.outcome else None,
        turns=turns if spoken_lines(turns) else [],
        receipt=dict(call.receipt),
    )


def _lines(document: str, facts: Sequence[str], topics: Sequence[str]) -> tuple[str, ...]:
    return (*document.splitlines(), *(f"Fact: {fact}" for fact in facts), *(f"Topic: {topic}" for topic in topics))


def _topic(content: Mapping[str, Any]) -> str:
    return ": ".join(filter(None, (content["title"], content.get("status") or "")))


def _keep_undo(connection: Connection, scopes: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    for (agent, caller), saved in scopes.items():
        values = (agent, caller, datetime.now(UTC).isoformat(), zlib.compress(orjson.dumps(saved)))
        connection.execute(
            """INSERT INTO rebuild_undo VALUES (?, ?, ?, ?)
                ON CONFLICT (agent, caller) DO UPDATE SET at = excluded.at, content = excluded.content""",
            values,
        )


def _stored(entry: NewEntry) -> dict[str, Any]:
    return {"content": entry.content, "vector": entry.vector.hex()}


def _entries(stored: Sequence[Mapping[str, Any]]) -> list[NewEntry]:
    return [NewEntry(entry["content"], bytes.fromhex(entry["vector"])) for entry in stored]
