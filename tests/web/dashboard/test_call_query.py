"""Turns of a call from its events, its archive or its timings."""

from datetime import UTC, datetime, timedelta

from gateway.web.dashboard.call_query import functions_of, logged_turns
from gateway.web.dashboard.timeline import Stretch
from tests.web.conftest import Visitor

START = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)


def event(kind: str, after: float, **fields: object) -> dict[str, object]:
    return {"event": kind, "at": (START + timedelta(seconds=after)).isoformat(), **fields}


EVENTS = [
    event("ringing", -2.0),
    event("answered", 0.0),
    event("turn", 3.0, speaker="caller", text="Is my bike ready?"),
    event("turn", 4.0, speaker="agent", text="It is.", answer=1, latency=0.8, stages={"first_frame": 0.8}),
    event("turn", 5.0, speaker="agent", text="Come at five.", answer=1),
    event("interruption", 5.5, answer=1, heard="It is.", unheard="Come at five."),
    event("function_finished", 7.0, function="book", ok=False, seconds=1.5),
]


def test_pieces_of_an_answer_are_one_turn():
    caller, agent = logged_turns(EVENTS)
    assert (caller.who, caller.text, caller.at) == ("caller", "Is my bike ready?", 3.0)
    assert (agent.text, agent.unheard, agent.cut, agent.wait) == ("It is.", "Come at five.", True, 0.8)
    assert agent.stages == [("first frame sent", 0.8)]


def test_functions_have_a_start_and_an_end():
    assert functions_of(EVENTS) == [Stretch(5.5, 7.0, "book failed")]


def test_call_without_events_has_no_turns():
    assert logged_turns([]) == [] and functions_of([]) == []


async def test_page_has_every_part(visitor: Visitor):
    page = await visitor.page(f"/calls/{visitor.session.uuid}")
    for title in ("Timeline", "Transcript", "Summary", "Learned from this call", "Post-call processing"):
        assert f">{title}</h2>" in page
