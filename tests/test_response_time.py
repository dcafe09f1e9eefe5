from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.response_time import STAGES, CountedFrom, ResponseTime

SECONDS = st.none() | st.floats(-1.0, 100.0)
TIMES = st.builds(ResponseTime, *[SECONDS] * len(STAGES), counted_from=st.sampled_from(CountedFrom))


@given(TIMES)
def test_response_time_survives_storage(measured: ResponseTime) -> None:
    assert ResponseTime.from_json(measured.as_json()) == measured


@pytest.mark.parametrize("stored", [{}, {"counted_from": None}])
def test_times_of_an_earlier_version_are_labelled(stored: dict[str, Any]) -> None:
    old = ResponseTime.from_json({"first_audio": 0.5, "later_invention": 1, **stored})
    assert old == ResponseTime(first_audio=0.5, counted_from=CountedFrom.ENGINE)
    assert old.counted_from.note == "from the engine's end of turn"


def test_only_the_defined_figure_needs_no_note() -> None:
    assert [start for start in CountedFrom if not start.note] == [CountedFrom.VOICE]


def test_steps_add_up_to_the_response_time() -> None:
    """In the order reached. What came after the first frame, as some transcripts do, is no part of it."""
    steps = ResponseTime(0.4, 1.5, -0.1, 0.7, 0.9, 0.95).steps
    names = ["LLM request", "end of turn detected", "first token", "first audio", "first frame sent"]
    assert [name for name, _ in steps] == names
    assert sum(seconds for _, seconds in steps) == pytest.approx(0.95)
    assert ResponseTime(transcript=0.1).steps == []
