import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.finalization.summary.facts import FACT_SCHEMA, FACT_TYPES, parse_facts
from gateway.memory.facts import CallerFact

ENTRY = {"text": "Prefers mornings", "type": "preference", "confidence": 0.8, "turns": [3]}
FACT = CallerFact("Prefers mornings", "preference", 0.8, (3,))


def read(**changes):
    return parse_facts([ENTRY | changes])


OTHER_KEYS = {"Fact": "Prefers mornings", "Kind": "preference", "score": 0.8, "lines": 3}


@pytest.mark.parametrize("value", [[ENTRY], ENTRY, [None, "text", ENTRY, 7], [OTHER_KEYS]])
def test_fact_is_read(value):
    assert parse_facts(value) == (FACT,)


@pytest.mark.parametrize("value", [None, "Prefers mornings", ["Prefers mornings"], 7, {}, []])
def test_what_is_no_fact_is_dropped(value):
    assert parse_facts(value) == ()


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("The caller prefers mornings.", "Prefers mornings"),
        ("caller's name is Ana", "Name is Ana"),
        ("She prefers mornings", "Prefers mornings"),
        ("- **Prefers** mornings\n", "Prefers mornings"),
        ("Sheila is the contact", "Sheila is the contact"),
    ],
)
def test_subject_and_markup_are_taken_off(text, sentence):
    assert read(text=text)[0].text == sentence


@pytest.mark.parametrize("text", ["", "  ", None, 7, ["x"], "x" * 161])
def test_fact_needs_a_short_text(text):
    assert read(text=text) == ()


@pytest.mark.parametrize(
    ("given_type", "type_"), [("Preferences", "preference"), ("NAME", "identity"), ("recurring_need", "need")]
)
def test_type_is_read_liberally(given_type, type_):
    assert read(type=given_type)[0].type == type_


@pytest.mark.parametrize("given_type", ["mood", "", None, 3])
def test_unknown_type_is_dropped(given_type):
    assert read(type=given_type) == ()


@pytest.mark.parametrize(
    ("value", "confidence"),
    [(0.7, 0.7), (1, 1.0), (80, 0.8), ("0.7", 0.7), ("85%", 0.85), ("High", 0.9), (-1, 0.0), (900, 1.0)]
    + [(wrong, 0.6) for wrong in (None, True, "quite", float("nan"), float("inf"), [1])],
)
def test_confidence_is_a_share(value, confidence):
    assert read(confidence=value)[0].confidence == confidence


@pytest.mark.parametrize(
    ("value", "turns"),
    [
        ([3, 1, 3], (1, 3)),
        (4, (4,)),
        (["[2]", "line 5"], (2, 5)),
        ("lines 2 and 5", (2, 5)),
        ([True, None, 2.5, [1]], ()),
        (None, ()),
    ],
)
def test_turns_are_line_numbers(value, turns):
    assert read(turns=value)[0].turns == turns


SCALARS = st.none() | st.booleans() | st.floats() | st.integers() | st.text()
JSON = SCALARS | st.lists(SCALARS, max_size=3)
ENTRIES = st.fixed_dictionaries(
    {"type": st.just("need")}, optional=dict.fromkeys(("text", "confidence", "turns"), JSON)
)


@given(st.lists(ENTRIES | JSON, max_size=3))
def test_any_answer_is_read_within_bounds(entries):
    for fact in parse_facts(entries):
        assert 0 < len(fact.text) <= 160 and fact.type in FACT_TYPES and 0 <= fact.confidence <= 1


def test_fact_survives_storage():
    stored = {"text": FACT.text, "type": FACT.type, "confidence": FACT.confidence, "turns": list(FACT.turns)}
    assert CallerFact.from_json(json.loads(json.dumps(stored))) == FACT


def test_schema_is_closed_and_complete():
    assert FACT_SCHEMA["additionalProperties"] is False
    assert FACT_SCHEMA["required"] == list(FACT_SCHEMA["properties"]) == list(CallerFact.__slots__)
