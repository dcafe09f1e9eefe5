"""One call as two nodes tell of it, put together: every turn that either knows, once, in the order spoken. No I/O."""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Final

from gateway.session import EndReason, Speaker, Turn, VoiceSession

_NEVER: Final = datetime.min.replace(tzinfo=UTC)


def merged(one: VoiceSession, other: VoiceSession) -> VoiceSession:
    """Both accounts in one. How the call ended is told by the one that was there."""
    earlier, later = sorted((one, other), key=_knows_the_end)
    taken_back = list(dict.fromkeys([*one.taken_back, *other.taken_back]))
    turns = merged_turns(earlier.turns, later.turns)
    return replace(
        later,
        started_at=min(one.started_at, other.started_at),
        turns=[turn for turn in turns if turn.name not in taken_back],
        state=later.state or earlier.state,
        timings=max(one.timings, other.timings, key=len),
        receipt=later.receipt or earlier.receipt,
        taken_over=one.taken_over or other.taken_over,
        taken_back=taken_back,
    )


def merged_turns(one: Iterable[Turn], other: Iterable[Turn]) -> list[Turn]:
    """Turns that both have stand where both have them. Between those, each keeps its order, and the clock decides."""
    first, second = deque(_known(one)), deque(_known(other))
    common = {turn.name for turn in first} & {turn.name for turn in second}
    turns: list[Turn] = []
    while first and second:
        here, there = first[0], second[0]
        if here.name in common and there.name in common:
            first.popleft()
            second.remove(twin := next(turn for turn in second if turn.name == here.name))
            common.discard(here.name)
            turns.append(_fuller(here.turn, twin.turn))
        elif here.name not in common and (there.name in common or here.turn.at <= there.turn.at):
            turns.append(first.popleft().turn)
        else:
            turns.append(second.popleft().turn)
    return [*turns, *(known.turn for known in (*first, *second))]


@dataclass(frozen=True)
class _Known:
    """A turn, and what it is known by: who began to speak when, and the how-manieth such it is."""

    name: tuple[Speaker, datetime, int]
    turn: Turn


def _known(turns: Iterable[Turn]) -> list[_Known]:
    seen: Counter[tuple[Speaker, datetime]] = Counter()
    known = []
    for turn in turns:
        seen[turn.speaker, turn.at] += 1
        known.append(_Known((turn.speaker, turn.at, seen[turn.speaker, turn.at]), turn))
    return known


def _fuller(one: Turn, other: Turn) -> Turn:
    """Of an answer, more was known by who has more of it, or knows where it was cut off."""
    return max(one, other, key=lambda turn: (len(f"{turn.text} {turn.unheard}".strip()), bool(turn.unheard)))


def _knows_the_end(session: VoiceSession) -> tuple[bool, datetime]:
    return session.end_reason not in (None, EndReason.GATEWAY_DIED), session.ended_at or _NEVER
