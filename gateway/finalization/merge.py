"""Merges what two nodes know of one call: every turn of either, once, in the order spoken. No I/O."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from gateway.finalization.document import redact_turns
from gateway.session import EndReason, Speaker, Turn, VoiceSession

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def merged(one: VoiceSession, other: VoiceSession) -> VoiceSession:
    """How the call ended is taken from the node that had it last. Secrets spread over both parts are redacted."""
    earlier, later = sorted((one, other), key=_ending)
    retracted = list(dict.fromkeys([*one.taken_back, *other.taken_back]))
    turns = merged_turns(earlier.turns, later.turns)
    return replace(
        later,
        started_at=min(one.started_at, other.started_at),
        turns=redact_turns([turn for turn in turns if turn.name not in retracted]),
        state=later.state or earlier.state,
        timings=max(one.timings, other.timings, key=len),
        receipt=later.receipt or earlier.receipt,
        taken_over=one.taken_over or other.taken_over,
        taken_back=retracted,
    )


def merged_turns(one: Iterable[Turn], other: Iterable[Turn]) -> list[Turn]:
    """Turns that both have anchor the order. Between those, each keeps its own order, and the clock decides."""
    first, second = deque(_keyed(one)), deque(_keyed(other))
    common = {turn.key for turn in first} & {turn.key for turn in second}
    turns: list[Turn] = []
    while first and second:
        here, there = first[0], second[0]
        if here.key in common and there.key in common:
            first.popleft()
            second.remove(twin := next(turn for turn in second if turn.key == here.key))
            common.discard(here.key)
            turns.append(_fuller(here.turn, twin.turn))
        elif here.key not in common and (there.key in common or here.turn.at <= there.turn.at):
            turns.append(first.popleft().turn)
        else:
            turns.append(second.popleft().turn)
    return [*turns, *(keyed.turn for keyed in (*first, *second))]


@dataclass(frozen=True)
class _KeyedTurn:
    """A turn and its merge key: (speaker, start time, occurrence)."""

    key: tuple[Speaker, datetime, int]
    turn: Turn


def _keyed(turns: Iterable[Turn]) -> list[_KeyedTurn]:
    seen: Counter[tuple[Speaker, datetime]] = Counter()
    keyed = []
    for turn in turns:
        seen[turn.speaker, turn.at] += 1
        keyed.append(_KeyedTurn((turn.speaker, turn.at, seen[turn.speaker, turn.at]), turn))
    return keyed


def _fuller(one: Turn, other: Turn) -> Turn:
    """The longer of two versions of an answer, or the one that says where it was cut off."""
    return max(one, other, key=lambda turn: (len(f"{turn.text} {turn.unheard}".strip()), bool(turn.unheard)))


def _ending(session: VoiceSession) -> tuple[bool, datetime]:
    """Sorts the node that knows how the call ended last."""
    return session.end_reason not in (None, EndReason.GATEWAY_DIED), session.ended_at or _NEVER
