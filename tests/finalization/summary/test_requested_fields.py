from datetime import date

import jsonschema
import orjson
import pytest

from gateway.agents import RequestedField
from gateway.finalization.summary.call_summary import SummaryRequest, parse_answer
from gateway.finalization.summary.requested_fields import field_instructions, field_schema, parse_fields

FIELDS = {
    "order": RequestedField("The order number"),
    "guests": RequestedField("How many people come", "number"),
    "urgent": RequestedField("Whether it can't wait", "bool"),
    "day": RequestedField("The day of the visit", "date"),
    "mood": RequestedField("", "one of", ("happy", "angry")),
}
NOTHING = dict.fromkeys(FIELDS)


def test_model_is_asked_for_each_field():
    text = field_instructions(FIELDS, date(2026, 2, 6))
    assert "Friday, 2026-02-06" in text
    assert "- guests: How many people come (a number)" in text
    assert "- mood: mood (one of: happy, angry)" in text
    assert field_instructions({}, date(2026, 2, 6)) == ""


def test_schema_accepts_values_and_null():
    schema = field_schema(FIELDS)
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.validate(NOTHING, schema)
    jsonschema.validate({"order": "A12", "guests": 4, "urgent": True, "day": "2026-02-07", "mood": "angry"}, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(NOTHING | {"mood": "sad"}, schema)
    assert SummaryRequest("", "", FIELDS).schema["properties"]["fields"] == schema
    assert "fields" not in SummaryRequest("", "").schema["properties"]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"order": "A12", "guests": 4, "urgent": False}, {"order": "A12", "guests": 4, "urgent": False}),
        ({"order": 4471, "guests": "1,200"}, {"order": "4471", "guests": 1200}),
        ({"day": "2026-02-07T10:00:00"}, {"day": "2026-02-07"}),
        ({"guests": 2.5, "mood": " Angry"}, {"guests": 2.5, "mood": "angry"}),
        ({"guests": "a few", "urgent": "yes", "day": "tomorrow", "mood": "sad", "order": ""}, {}),
        ({"guests": True, "order": True, "urgent": 1, "day": 7, "mood": 1}, {}),
        ({"guests": float("nan"), "order": None}, {}),
        ({"guests": 10**20}, {"guests": 1e20}),
        ({"guests": "1e300"}, {"guests": 1e300}),
        ({"guests": 10**400}, {}),
        ({"something": "else"}, {}),
        ("no table", {}),
        (None, {}),
    ],
)
def test_value_of_another_type_counts_as_not_said(given, read):
    values = parse_fields(FIELDS, given)
    assert values == NOTHING | read
    orjson.dumps(values)  # or the call could not be stored


def test_secret_is_removed_from_text():
    assert "4111" not in parse_fields(FIELDS, {"order": "card 4111 1111 1111 1111"})["order"]


def test_fields_are_part_of_the_answer():
    summary = parse_answer('{"topics": ["An order"], "fields": {"order": "A12"}}', "test/model", FIELDS)
    assert summary.fields == NOTHING | {"order": "A12"}
    assert parse_answer('{"topics": ["An order"]}', "test/model").fields == {}
