from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

from gateway.agents import render_prompt, spoken_time, wanted_personas, wants_memory

NOW = datetime(2026, 2, 6, 23, 15, tzinfo=ZoneInfo("America/New_York"))


def filled(template, *, memory="notes", caller="Ana (+12025550143)", **personas):
    return render_prompt(template, memory=memory, now=NOW, caller=caller, personas=personas)


def test_placeholders_are_filled():
    text = filled("It is {{now}}. {{caller}} calls.\n{{memory}}")
    assert text == "It is Friday, 6 February 2026, 11:15 PM. Ana (+12025550143) calls.\nnotes"


def test_spaces_and_repeats_are_allowed():
    assert filled("{{ memory }} {{memory}} {{\tmemory\n}}") == "notes notes notes"


def test_remembered_text_is_not_a_template():
    """A caller who spoke a placeholder gets it back as it was, and the others stay what they are."""
    assert (
        filled("{{memory}}|{{caller}}", memory="{{caller}} {{now}} \\1") == "{{caller}} {{now}} \\1|Ana (+12025550143)"
    )


def test_caller_is_not_a_template():
    assert filled("{{caller}}: {{memory}}", caller="{{memory}}") == "{{memory}}: notes"


def test_personas_are_filled_by_name():
    text = filled("{{persona:maya}}, {{ persona:acme_1 }}, {{persona:maya}}", maya="a baker", acme_1="a shop")
    assert text == "a baker, a shop, a baker"


def test_unknown_persona_is_left_out():
    assert filled("You work for {{persona:unknown}}.", maya="a baker") == "You work for ."


def test_persona_is_not_a_template():
    assert filled("{{persona:maya}}|{{memory}}", maya="{{memory}} {{persona:maya}}") == (
        "{{memory}} {{persona:maya}}|notes"
    )


@pytest.mark.parametrize(
    "template, names",
    [
        ("{{persona:maya}} {{memory}} {{ persona:acme-2 }} {{persona:maya}}", ("maya", "acme-2")),
        ("{{persona}} {{persona:}} {{persona: maya}} {{other:maya}} persona:maya", ()),
    ],
)
def test_personas_are_wanted_where_named(template, names):
    assert wanted_personas(template) == names


@pytest.mark.parametrize(
    "template",
    ["{{name}}", "{memory}", "{{mem ory}}", "{{Memory}}", "{{}}", "{{memory}", "{{persona}}", "{{other:maya}}"],
)
def test_unknown_placeholder_stays(template):
    assert filled(template) == template


def test_unknown_caller_is_called_unknown():
    assert filled("{{caller}}", caller="") == "an unknown caller"


def test_outer_blanks_are_cut():
    assert filled("\n Hello {{memory}}\n", memory="") == "Hello"


@pytest.mark.parametrize(
    "template, wanted",
    [("{{memory}}", True), ("a {{ memory }} b", True), ("{{now}} {memory}", False), ("memory", False), ("", False)],
)
def test_memory_is_wanted_where_named(template, wanted):
    assert wants_memory(template) is wanted


@pytest.mark.parametrize(
    "hour, minute, spoken", [(0, 5, "12:05 AM"), (9, 0, "9:00 AM"), (12, 0, "12:00 PM"), (21, 30, "9:30 PM")]
)
def test_clock_is_said_as_people_do(hour, minute, spoken):
    assert spoken_time(NOW.replace(hour=hour, minute=minute)) == f"Friday, 6 February 2026, {spoken}"
