"""What `gateway memory` prints for a person: plain text in columns."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import orjson

from gateway.history.calls_table import FinishedCall
from gateway.history.erasure import ErasureResult
from gateway.history.report import AuditFinding, CallerReport, CallerSummary, MemoryChange, MemoryStats
from gateway.memory.documents import Document
from gateway.memory.pinned_topics import PinnedTopic

MOST_CALLS: Final = 10
_WIDEST: Final = 60


def acquaintances(known: Iterable[CallerSummary]) -> str:
    rows = [
        (
            one.caller,
            one.agent,
            _count(one.calls, "call"),
            _count(one.facts, "fact"),
            _count(one.state_keys, "state key"),
            f"last {_minute(one.last_call)}" if one.last_call else "",
        )
        for one in known
    ]
    return _columns(rows) or "nobody is known"


def report(known: CallerReport) -> str:
    pins = [
        (
            known_pin.pin.title,
            known_pin.pin.state,
            known_pin.pin.status,
            f"{len(known_pin.pin.open_items)} open",
            f"last {known_pin.pin.last_said_at:%Y-%m-%d}",
            _short(known_pin.pin.session_id) or "by hand",
            known_pin.agent,
        )
        for known_pin in known.pins
    ]
    facts = [
        (
            known_fact.fact.text,
            known_fact.fact.type,
            f"{known_fact.fact.confidence:.2f}",
            f"since {known_fact.fact.said_at:%Y-%m-%d}",
            _short(known_fact.fact.session_id),
            known_fact.agent,
        )
        for known_fact in known.facts
    ]
    state = [
        (key, orjson.dumps(value).decode(), agent) for agent, kept in known.state.items() for key, value in kept.items()
    ]
    notes = [
        (" ".join(note.content.split()), f"since {note.created_at:%Y-%m-%d}", ", ".join(_agents(note)))
        for note in known.notes
    ]
    calls = [_call_row(call, known.reverted) for call in known.calls[:MOST_CALLS]]
    newest = ", the newest" if len(known.calls) > MOST_CALLS else ""
    sections = [
        *([f"{_count(len(pins), 'pinned topic')}\n{_columns(pins, '  ')}"] if pins else []),
        f"{_count(len(facts), 'fact')}\n{_columns(facts, '  ')}",
        *([f"{_count(len(notes), 'note')}\n{_columns(notes, '  ')}"] if notes else []),
        f"{_count(len(state), 'state key')}\n{_columns(state, '  ')}",
        f"{_count(len(known.calls), 'call')}{newest}\n{_columns(calls, '  ')}",
    ]
    return "\n\n".join([known.caller, *(section.rstrip() for section in sections)])


def _agents(document: Document) -> list[str]:
    return [tag.removeprefix("agent:") for tag in document.tags if tag.startswith("agent:")]


def pinned(pin: PinnedTopic) -> str:
    parts = [("about", pin.about), ("status", pin.status), *(("open", item) for item in pin.open_items)]
    rows = [(name, text) for name, text in parts if text]
    return f"{_printable(pin.title)} ({pin.state})\n{_columns(rows, '  ')}".rstrip()


def changes(changed: Iterable[MemoryChange]) -> str:
    rows = [
        (
            _minute(change.at.isoformat()),
            change.op,
            _short(change.session_id) or "by hand",
            f"{change.before} -> {change.after}" if change.before else f"-> {change.after}",
        )
        for change in changed
    ]
    return _columns(rows) or "nothing was changed"


def receipt(call: FinishedCall) -> str:
    items: Sequence[Mapping[str, Any]] = call.receipt.get("items", ())
    if not items:
        return f"the agent was told nothing of earlier calls; tier {call.receipt.get('tier') or 'none'}"
    rows = [
        (
            item["kind"],
            item.get("text", ""),
            _short(item["session"]) or "by hand",
            f"turns {', '.join(map(str, item['turns']))}" if item.get("turns") else "",
            _count(item["age_days"], "day"),
            f"score {item['score']:.2f}" if "score" in item else "",
            _count(item["tokens"], "token"),
        )
        for item in items
    ]
    block = "\n".join(map(_printable, call.receipt["block"].splitlines()))
    return f"tier {call.receipt['tier']}\n\n{block}\n\n{_columns(rows)}"


def findings(counts: Mapping[str, int], found: Iterable[AuditFinding]) -> str:
    rows = [(one.kind, one.caller, one.agent, _short(one.session_id), one.text) for one in found]
    if not rows:
        return "nothing was found"
    return f"{', '.join(f'{count} {kind}' for kind, count in counts.items())}\n\n{_columns(rows)}"


def figures(known: MemoryStats) -> str:
    days = "nobody has called twice" if known.days_between_calls is None else str(known.days_between_calls)
    rows = [
        ("calls", str(known.calls)),
        ("callers", f"{known.callers} ({known.first_time} first-time, {known.returning} returning)"),
        ("days between calls, median", days),
        ("facts per caller", str(known.facts_per_caller)),
        ("calls told something", f"{known.share_told:.1%}"),
        *((f"callers with {key}", str(count)) for key, count in known.state_keys.items()),
    ]
    return _columns(rows)


def undone(result: ErasureResult) -> str:
    deleted = [f"{kind} {count}" for kind, count in result.deleted.items() if count]
    lines = [f"deleted: {', '.join(deleted) or 'nothing'}"]
    if result.remote_left:
        lines.append(f"the remote store keeps {_count(result.remote_left, 'document')}; delete them there")
    if result.unscrubbed:
        names = ", ".join(result.unscrubbed)
        lines.append(f"busy, or no room to rewrite: {names}; freed pages there may hold words, repeat this later")
    return "\n".join(lines)


def forgotten(result: ErasureResult, held_by: Sequence[str], *, under_way: int, verified: bool) -> str:
    lines = [undone(result)]
    if under_way:
        calls = _count(under_way, "call")
        lines.append(f"{calls} not over, or not all stored: what a running gateway still writes, it deletes afterwards")
    if held_by:
        lines += ["the words are still in:", *(f"  {path}" for path in held_by)]
    elif verified:
        lines.append("the words are in no file and no table any more")
    return "\n".join(lines)


def _call_row(call: FinishedCall, reverted: Sequence[str]) -> tuple[str, ...]:
    return (
        _minute(call.started_at),
        call.session_id,
        call.agent,
        f"{call.seconds:.0f} s",
        call.outcome,
        "reverted" if call.session_id in reverted else "",
    )


def _columns(rows: Iterable[Sequence[str]], indent: str = "") -> str:
    """Aligned; a very long cell pushes only its own line."""
    cells = [[_printable(cell) for cell in row] for row in rows]
    widths = [min(max(map(len, column)), _WIDEST) for column in zip(*cells, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in cells)
    return "\n".join(f"{indent}{line}".rstrip() for line in lines)


def _printable(text: str) -> str:
    """Callers' words must not steer the terminal."""
    return "".join(character if character.isprintable() else " " for character in text)


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _minute(time: str) -> str:
    return f"{datetime.fromisoformat(time):%Y-%m-%d %H:%M}"


def _short(session_id: str) -> str:
    """Enough of it to be found by."""
    return session_id.removeprefix("voice-session:")[:8]
