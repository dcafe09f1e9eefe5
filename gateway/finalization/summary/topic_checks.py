"""Which topics may be kept of a call: those the caller spoke of, and that nobody minds being noted."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gateway.finalization.summary.call_summary import SpokenLine
from gateway.finalization.summary.fact_checks import may_be_noted
from gateway.finalization.summary.topics import MAX_TOPICS, on_lines
from gateway.memory.topic_projection import TopicNote


def kept(notes: Iterable[TopicNote], lines: Sequence[SpokenLine]) -> tuple[TopicNote, ...]:
    """The topics worth keeping, a few, in their order; a part that must not be noted is left out of them."""
    callers = [line.speaker == "caller" for line in lines]
    unique = {note.title.casefold(): note for note in notes}
    fit = [note for note in unique.values() if may_be_noted(f"{note.title}. {note.about}")]
    based = [based for note in fit if (based := on_lines(note, callers))]
    return tuple(_cleaned(note) for note in based[:MAX_TOPICS])


def _cleaned(note: TopicNote) -> TopicNote:
    return replace(
        note,
        status=note.status if may_be_noted(note.status) else "",
        change=note.change if may_be_noted(note.change) else "",
        open_items=tuple(filter(may_be_noted, note.open_items)),
    )
