"""What `gateway memory` prints for a person."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from rich.console import RenderableType
from rich.text import Text

from gateway.cli.terminal import count, line, minute, one_line, short_id, table
from gateway.history.calls_table import FinishedCall
from gateway.history.erasure import ErasureResult
from gateway.history.rebuild import RebuiltCall
from gateway.history.report import AuditFinding, CallerReport, CallerSummary, MemoryChange, MemoryStats
from gateway.memory.facts import Fact
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.stores.documents import Document

MOST_CALLS: Final = 10

_BY_OPERATOR: Final = "by operator"


def callers(known: Sequence[CallerSummary]) -> Iterator[RenderableType]:
    rows = [
        (
            one.caller,
            one.agent,
            count(one.calls, "call"),
            count(one.facts, "fact"),
            count(one.state_keys, "state key"),
            f"last {minute(one.last_call)}" if one.last_call else "",
        )
        for one in known
    ]
    yield table(rows) if rows else "no callers yet"


def report(known: CallerReport) -> Iterator[RenderableType]:
    """Topics and notes only where there are some; the newest calls only."""
    yield line(known.caller, "bold")
    for title, rows in _sections(known):
        yield ""
        yield Text(title, "bold")
        if rows:
            yield table(rows, indent=2)


def _sections(known: CallerReport) -> Iterator[tuple[str, Sequence[Sequence[str]]]]:
    if known.pins:
        yield count(len(known.pins), "pinned topic"), [_pin_row(one.pin, one.agent) for one in known.pins]
    yield count(len(known.facts), "fact"), [_fact_row(one.fact, one.agent) for one in known.facts]
    if known.notes:
        yield count(len(known.notes), "note"), [_note_row(note) for note in known.notes]
    state = [
        (key, orjson.dumps(value).decode() + (" (unverified)" if key in kept.unverified else ""), agent)
        for agent, kept in known.state.items()
        for key, value in kept.items()
    ]
    yield count(len(state), "state key"), state
    newest = f", the newest {MOST_CALLS}" if len(known.calls) > MOST_CALLS else ""
    calls = [_call_row(call, is_reverted=call.session_id in known.reverted) for call in known.calls[:MOST_CALLS]]
    yield f"{count(len(known.calls), 'call')}{newest}", calls


def _pin_row(pin: PinnedTopic, agent: str) -> Sequence[str]:
    state = f"{pin.state}, unverified" if pin.trust.mark else pin.state
    last, origin = f"last {pin.last_said_at:%Y-%m-%d}", short_id(pin.session_id) or _BY_OPERATOR
    return pin.title, state, pin.status, f"{len(pin.open_items)} open", last, origin, agent


def _fact_row(fact: Fact, agent: str) -> Sequence[str]:
    confidence = f"{fact.confidence:.2f}{', unverified' if fact.trust.mark else ''}"
    return fact.text, fact.type, confidence, f"since {fact.said_at:%Y-%m-%d}", short_id(fact.session_id), agent


def _note_row(note: Document) -> Sequence[str]:
    agents = ", ".join(tag.removeprefix("agent:") for tag in note.tags if tag.startswith("agent:"))
    return " ".join(note.content.split()), f"since {note.created_at:%Y-%m-%d}", agents


def _call_row(call: FinishedCall, *, is_reverted: bool) -> Sequence[str]:
    length, mark = f"{call.seconds:.0f} s", "reverted" if is_reverted else ""
    return minute(call.started_at), call.session_id, call.agent, length, call.outcome, mark


def topic(pin: PinnedTopic) -> Iterator[RenderableType]:
    yield line(f"{pin.title} ({pin.state})")
    parts = [("about", pin.about), ("status", pin.status), *(("open", item) for item in pin.open_items)]
    if rows := [(name, text) for name, text in parts if text]:
        yield table(rows, indent=2)


def changes(made: Sequence[MemoryChange]) -> Iterator[RenderableType]:
    rows = [
        (
            minute(change.at.isoformat()),
            change.op,
            short_id(change.session_id) or _BY_OPERATOR,
            f"{change.before} -> {change.after}" if change.before else f"-> {change.after}",
        )
        for change in made
    ]
    yield table(rows) if rows else "no changes"


def context(call: FinishedCall) -> Iterator[RenderableType]:
    """The memory in the prompt of a call, and the source of each part."""
    items: Sequence[Mapping[str, Any]] = call.receipt.get("items", ())
    if not items:
        yield f"no earlier calls in the prompt (access: {call.receipt.get('tier') or 'none'})"
        return
    rows = [
        (
            item["kind"],
            item.get("text", ""),
            short_id(item["session"]) or _BY_OPERATOR,
            f"turns {', '.join(map(str, item['turns']))}" if item.get("turns") else "",
            count(item["age_days"], "day"),
            f"score {item['score']:.2f}" if "score" in item else "",
            count(item["tokens"], "token"),
        )
        for item in items
    ]
    yield f"access: {call.receipt['tier']}"
    yield ""
    for text in call.receipt["block"].splitlines():
        yield line(text)
    yield ""
    yield table(rows)


def findings(counts: Mapping[str, int], found: Sequence[AuditFinding]) -> Iterator[RenderableType]:
    if not found:
        yield "no findings"
        return
    yield ", ".join(f"{number} {kind}" for kind, number in counts.items())
    yield ""
    yield table([(one.kind, one.caller, one.agent, short_id(one.session_id), one.text) for one in found])


def stats(known: MemoryStats) -> Iterator[RenderableType]:
    days = "no repeat callers" if known.days_between_calls is None else str(known.days_between_calls)
    yield table(
        [
            ("calls", str(known.calls)),
            ("callers", f"{known.callers} ({known.first_time} first-time, {known.returning} returning)"),
            ("days between calls, median", days),
            ("facts per caller", str(known.facts_per_caller)),
            ("calls with memory in the prompt", f"{known.share_told:.1%}"),
            *((f"callers with {key}", str(number)) for key, number in known.state_keys.items()),
        ]
    )


def rebuilt(calls: Sequence[RebuiltCall]) -> Iterator[RenderableType]:
    """The difference of each call that changes, then the calls that stay as they are."""
    styles = {"+": "green", "-": "red", "@": "dim"}
    for call in calls:
        if call.is_changed:
            yield line(f"{call.session.started_at.astimezone():%Y-%m-%d %H:%M}  {call.session.id}", "bold")
            yield from (line(text, styles.get(text[:1], "")) for text in call.diff[2:])
            yield ""
        elif call.problem:
            yield line(f"{call.session.id} stays as it is: {call.problem}", "dim")
    if not any(call.is_changed for call in calls):
        yield f"nothing to change in {count(len(calls), 'call')}"


def deleted(result: ErasureResult) -> Iterator[RenderableType]:
    kinds = [f"{kind} {number}" for kind, number in result.deleted.items() if number]
    yield f"deleted: {', '.join(kinds) or 'nothing'}"
    if result.remote_left:
        yield f"{count(result.remote_left, 'document')} left in the remote store; delete them there"
    if result.unscrubbed:
        names = ", ".join(result.unscrubbed)
        reason = "busy, disk full or not permitted"
        yield f"could not rewrite {names} ({reason}); deleted text may remain in free pages, run this again"
    if result.unreadable:
        found = count(result.unreadable, "recording")
        yield f"{found} can't be decrypted and may be of this caller; add the key to RECORD_KEY, run this again"


def forgotten(
    result: ErasureResult, held_by: Sequence[str], *, under_way: int, verified: bool
) -> Iterator[RenderableType]:
    yield from deleted(result)
    if under_way:
        yield f"{count(under_way, 'call')} not finished; a running gateway deletes what they still write"
    if held_by:
        yield "still found in:"
        for path in held_by:
            yield Text(f"  {one_line(path)}", "red")
    elif verified:
        yield "verified: no file or table contains these words"
