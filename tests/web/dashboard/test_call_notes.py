"""What the page of a call says of events between its turns."""

import pytest

from gateway.web.dashboard.call_notes import MAX_NOTES, CallNote, notes_of

LOST = {"event": "engine_lost", "engine": "deepgram", "reason": "closed with 1011"}


def texts(*events: dict[str, object]) -> list[str]:
    return [note.text for note in notes_of(events, range(len(events)))]


@pytest.mark.parametrize(
    "event, expected",
    [
        (LOST, "Voice engine lost: deepgram, closed with 1011"),
        ({"event": "engine_lost", "reason": "timeout"}, "Voice engine lost: timeout"),
        ({"event": "media_lost", "reason": "media stream lost"}, "Media stream lost"),
        ({"event": "answered", "attempt": 1}, "Media stream connected again"),
        ({"event": "memory", "outcome": "failed"}, "Memory could not be loaded"),
        ({"event": "voicemail", "state": "reached"}, "Voicemail reached"),
        ({"event": "voicemail", "state": "left"}, "Message left on the voicemail"),
        (
            {"event": "error", "what": "engine warned", "reason": "SLOW_THINK_REQUEST"},
            "Voice engine warning: the language model is slow",
        ),
        (
            {"event": "error", "what": "engine failed", "reason": "some_other.code"},
            "The voice engine failed: some other code",
        ),
        ({"event": "error", "what": "call failed", "reason": "KeyError"}, "The call failed. See the log for details."),
    ],
)
def test_event_in_words(event: dict[str, object], expected: str):
    assert texts(event) == [expected]


@pytest.mark.parametrize("event", [{"event": "answered", "attempt": 0}, {"event": "memory", "outcome": "loaded"}])
def test_ordinary_events_are_not_noted(event: dict[str, object]):
    assert texts(event) == []


def test_other_engine_took_over():
    back = {"event": "engine_back"}
    assert texts(LOST, back | {"engine": "openai"})[1] == "openai took over"
    assert texts(LOST, back | {"engine": "deepgram"})[1] == "deepgram connected again"


def test_repeated_events_are_one_note():
    warned = {"event": "error", "what": "engine warned", "reason": "SLOW_THINK_REQUEST"}
    [note] = notes_of([warned] * 3, [4.0, 5.0, 6.0])
    assert note == CallNote(4.0, "Voice engine warning: the language model is slow", is_problem=True, times=3)


def test_notes_have_a_limit():
    events = [LOST | {"reason": str(number)} for number in range(MAX_NOTES + 20)]
    assert len(texts(*events)) == MAX_NOTES + 1 and texts(*events)[-1] == "20 more events, see the log"
