"""What `gateway memory` prints for a person."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import orjson
from rich.console import RenderableType
from rich.text import Text

from gateway.cli.terminal import day, line, minute, named, one_line, short_id, table
from gateway.history.calls_table import FinishedCall
from gateway.history.erasure import ErasureResult
from gateway.history.rebuild import RebuiltCall
from gateway.history.report import AuditFinding, CallerReport, CallerSummary, MemoryChange, MemoryStats
from gateway.memory.facts import Fact, labelled
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.stores.documents import Document
from gateway.text.figures import count, duration

MOST_CALLS: Final = 10

_BY_OPERATOR: Final = "by operator"


def callers(known: Sequence[CallerSummary], names: Mapping[str, str]) -> Iterator[RenderableType]:
    head = ("caller", "agent", "calls", "facts", "state keys", "last call")
    rows = [
        (
            named(one.caller, names.get(one.caller, "")),
            one.agent,
            *(str(number) for number in (one.calls, one.facts, one.state_keys)),
            minute(one.last_call) if one.last_call else "",
        )
        for one in known
    ]
    yield table(rows, head=head, figures=head[2:5]) if rows else "no callers yet"


def report(known: CallerReport, name: str = "") -> Iterator[RenderableType]:
    """Topics and notes only where there are some; the newest calls only."""
    yield line(named(known.caller, name), "bold")
    for title, rows, head in _sections(known):
        yield ""
        yield Text(title, "bold")
        if rows:
            yield table(rows, head=head.split(", "), figures=("confidence", "open items", "length"), indent=2)


def _sections(known: CallerReport) -> Iterator[tuple[str, Sequence[Sequence[str]], str]]:
    """For each: its title, the rows of its table, their heads."""
    if known.pins:
        rows = [_pin_row(one.pin, one.agent) for one in known.pins]
        yield count(len(known.pins), "pinned topic"), rows, "topic, state, status, open items, last, from call, agent"
    facts = [_fact_row(one.fact, one.agent) for one in known.facts]
    yield count(len(known.facts), "fact"), facts, "fact, type, confidence, since, from call, agent"
    if known.notes:
        yield count(len(known.notes), "note"), [_note_row(note) for note in known.notes], "note, since, agent"
    state = [
        (key, orjson.dumps(value).decode() + (" (unverified)" if key in kept.unverified else ""), agent)
        for agent, kept in known.state.items()
        for key, value in kept.items()
    ]
    yield count(len(state), "state key"), state, "key, value, agent"
    newest = f", the newest {MOST_CALLS}" if len(known.calls) > MOST_CALLS else ""
    calls = [_call_row(call, is_reverted=call.session_id in known.reverted) for call in known.calls[:MOST_CALLS]]
    yield f"{count(len(known.calls), 'call')}{newest}", calls, "call, time, agent, length, outcome, "


def _pin_row(pin: PinnedTopic, agent: str) -> Sequence[str]:
    state = f"{pin.state}, unverified" if pin.trust.mark else pin.state
    last, origin = day(pin.last_said_at), short_id(pin.session_id) or _BY_OPERATOR
    return pin.title, state, pin.status, str(len(pin.open_items)), last, origin, agent


def _fact_row(fact: Fact, agent: str) -> Sequence[str]:
    confidence = f"{fact.confidence:.2f}{', unverified' if fact.trust.mark else ''}"
    return labelled(fact.text), fact.type, confidence, day(fact.said_at), short_id(fact.session_id), agent


def _note_row(note: Document) -> Sequence[str]:
    agents = ", ".join(tag.removeprefix("agent:") for tag in note.tags if tag.startswith("agent:"))
    return " ".join(note.content.split()), day(note.created_at), agents


def _call_row(call: FinishedCall, *, is_reverted: bool) -> Sequence[str]:
    mark = "reverted" if is_reverted else ""
    return short_id(call.session_id), minute(call.started_at), call.agent, duration(call.seconds), call.outcome, mark


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
            labelled(change.before),
            labelled(change.after),
        )
        for change in made
    ]
    yield table(rows, head=("time", "change", "from call", "before", "after")) if rows else "no changes"


def context(call: FinishedCall) -> Iterator[RenderableType]:
    """The memory in the prompt of a call, and the source of each part."""
    items: Sequence[Mapping[str, Any]] = call.receipt.get("items", ())
    if not items:
        yield f"no earlier calls in the prompt (access: {call.receipt.get('tier') or 'none'})"
        return
    rows = [
        (
            item["kind"],
            labelled(item.get("text", "")),
            short_id(item["session"]) or _BY_OPERATOR,
            ", ".join(map(str, item.get("turns", ()))),
            count(item["age_days"], "day"),
            f"{item['score']:.2f}" if "score" in item else "",
            str(item["tokens"]),
        )
        for item in items
    ]
    yield f"access: {call.receipt['tier']}"
    yield ""
    for text in call.receipt["block"].splitlines():
        yield line(text)
    yield ""
    head = ("kind", "text", "from call", "turns", "age", "score", "tokens")
    yield table(rows, head=head, figures=("age", "score", "tokens"))


def findings(counts: Mapping[str, int], found: Sequence[AuditFinding]) -> Iterator[RenderableType]:
    if not found:
        yield "no findings"
        return
    yield ", ".join(f"{number} {kind}" for kind, number in counts.items())
    yield ""
    rows = [(one.kind, one.caller, one.agent, short_id(one.session_id), one.text) for one in found]
    yield table(rows, head=("finding", "caller", "agent", "from call", "text"))


def stats(known: MemoryStats) -> Iterator[RenderableType]:
    days = "no repeat callers" if known.days_between_calls is None else str(known.days_between_calls)
    yield table(
        [
            ("calls", str(known.calls)),
            ("callers", f"{known.callers} ({known.first_time} with one call, {known.returning} with several)"),
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
            yield line(f"{minute(call.session.started_at.isoformat())}  {call.session.id}", "bold")
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
        yield f"{found} can't be decrypted and may contain this caller; add the key to RECORD_KEY, run this again"


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
