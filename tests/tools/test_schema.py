import enum
import json
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal, Optional

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field

from gateway.engines.interface import AgentFunction
from gateway.errors import SettingsError
from gateway.tools.schema import ArgumentsRefused, FunctionSchema, GivenSchema


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Folder:
    inner: "Folder | None" = None


SCHEMA = FunctionSchema.of(
    "order",
    "Order cheese.",
    {
        "kind": Annotated[str, "of cheese"],
        "size": Annotated[Size, Field(description="of the piece")],
        "when": date,
        "cut": Literal["slices", "block"],
        "extras": list[str],
        "grams": Optional[int],  # noqa: UP045 (users write it)
        "json": bool,
    },
    defaults={"cut": "block", "extras": [], "grams": None, "json": False},
)
GOOD = {"kind": "gouda", "size": "small", "when": "2026-02-06"}


def test_hints_become_a_schema():
    assert SCHEMA.definition.parameters == {
        "type": "object",
        "properties": {
            "kind": {"type": "string", "description": "of cheese"},
            "size": {"type": "string", "enum": ["small", "large"], "title": "Size", "description": "of the piece"},
            "when": {"type": "string", "format": "date"},
            "cut": {"type": "string", "enum": ["slices", "block"], "default": "block"},
            "extras": {"type": "array", "items": {"type": "string"}, "default": []},
            "grams": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
            "json": {"type": "boolean", "default": False},
        },
        "required": ["kind", "size", "when"],
        "additionalProperties": False,
    }


def test_arguments_get_their_types_and_defaults():
    assert SCHEMA.parse(json.dumps({**GOOD, "grams": "200"})) == {
        "kind": "gouda",
        "size": Size.SMALL,
        "when": date(2026, 2, 6),
        "cut": "block",
        "extras": [],
        "grams": 200,
        "json": False,
    }


@pytest.mark.parametrize("text", ["", " ", "{}"])
def test_no_arguments_are_fine_where_none_are_needed(text):
    schema = FunctionSchema.of("end_call", "Hang up.")
    assert schema.parse(text) == {}
    assert schema.definition.parameters == {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "kind: Field required; size: Field required; when: Field required"),
        ("{", "Invalid JSON: EOF while parsing an object at line 1 column 1"),
        ("[]", "Input should be an object"),
        (json.dumps({**GOOD, "size": "huge"}), "size: Input should be 'small' or 'large'"),
        (json.dumps({**GOOD, "kind": 5}), "kind: Input should be a valid string"),
        (json.dumps({**GOOD, "extras": ["nuts", 5]}), "extras.1: Input should be a valid string"),
        (json.dumps({**GOOD, "grms": 5}), "grms: Extra inputs are not permitted"),
    ],
)
def test_wrong_arguments_are_explained(text, words):
    with pytest.raises(ArgumentsRefused) as raised:
        SCHEMA.parse(text)
    assert str(raised.value) == words


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "grams", "x"]), inner),
)


@given(st.text(max_size=20) | JSON.map(json.dumps))
def test_nothing_else_comes_of_odd_arguments(text):
    try:
        SCHEMA.parse(text)
    except ArgumentsRefused as refused:
        assert str(refused)


@pytest.mark.parametrize(
    ("hint", "problem"),
    [
        (type, "the type of it has no JSON schema"),
        (object(), "the type of it has no JSON schema"),
        (Folder, "the type of it contains itself"),
    ],
)
def test_hint_that_no_agent_understands_is_refused(hint, problem):
    with pytest.raises(SettingsError) as raised:
        FunctionSchema.of("open", "Open.", {"it": hint})
    assert str(raised.value) == problem


@pytest.mark.parametrize("name", ["", "grüßen", "a b", "x" * 65])
def test_name_that_no_agent_can_call_is_refused(name):
    with pytest.raises(SettingsError):
        FunctionSchema.of(name, "")


def test_untellable_default_stays_optional():
    schema = FunctionSchema.of("wait", "Wait.", {"till": Any}, defaults={"till": object()})
    assert schema.definition.parameters["properties"] == {"till": {}}
    assert schema.parse("{}") == schema.defaults


# Schemas of other programs

GIVEN = GivenSchema(
    AgentFunction(
        "find",
        "Find it.",
        {
            "type": "object",
            "properties": {
                "order": {"type": "string"},
                "count": {"type": ["integer", "null"]},
                "size": {"enum": ["small", 3]},
                "price": {"type": "number"},
                "any": True,
                "odd": {"type": "strange"},
            },
            "required": ["order"],
            "additionalProperties": False,
        },
    )
)


def test_given_arguments_are_passed_on():
    text = '{"order": "7", "count": null, "size": 3, "price": 1, "any": [], "odd": {}}'
    assert GIVEN.parse(text) == {"order": "7", "count": None, "size": 3, "price": 1, "any": [], "odd": {}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Invalid JSON"),
        ("[" * 100_000, "Invalid JSON"),
        ("[]", "Input should be an object"),
        ("", "order: Field required"),
        ('{"order": 7}', "order: Input should be of type string"),
        ('{"order": "7", "count": true}', "count: Input should be of type integer or null"),
        ('{"order": "7", "size": "big"}', 'size: Input should be one of ["small", 3]'),
        ('{"order": "7", "extra": 1}', "extra: Unknown field"),
    ],
)
def test_given_arguments_are_checked(text, message):
    with pytest.raises(ArgumentsRefused) as raised:
        GIVEN.parse(text)
    assert str(raised.value) == message


def test_schema_without_properties_takes_anything():
    assert GivenSchema(AgentFunction("find", "", {"type": "object"})).parse('{"x": 1}') == {"x": 1}
