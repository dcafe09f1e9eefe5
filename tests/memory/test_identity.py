import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import SettingsError
from gateway.memory.identity import (
    LONG_SILENCE,
    MOST_CHARACTERS,
    RepeatCallerSettings,
    SpeakerTracker,
    identifier,
)
from gateway.settings import read_table

WHERE = "gateway.toml, [agents.maya]: memory.repeat_caller"
NUMBER = "+12025550143"


def settings(**table) -> RepeatCallerSettings:
    return read_table(RepeatCallerSettings, table, WHERE)


# Settings


def test_defaults_identify_by_number():
    assert settings() == RepeatCallerSettings()
    assert identifier(settings(), NUMBER) == NUMBER


def test_whole_table_is_read():
    read = settings(
        analytics_enabled=True,
        state_keys=["cheese", "size"],
        identifier_blacklist=["+1 (202) 555-0143", "Test-*"],
        identifier_source="sip_header:X-Customer-Id",
    )
    assert read.analytics_enabled
    assert read.state_keys == {"cheese", "size"}
    assert read.identifier_blacklist == (NUMBER, "test-*")
    assert (read.identifier_source.kind, read.identifier_source.name) == ("sip_header", "x-customer-id")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([], " must be a table"),
        (
            {"colour": 1},
            ": unknown key colour; known are analytics_enabled, identifier_blacklist, identifier_source,"
            " new_person_after, state_keys",
        ),
        ({"analytics_enabled": "yes"}, ".analytics_enabled must be true or false"),
        ({"state_keys": "cheese"}, ".state_keys must be a list of names"),
        ({"state_keys": [1]}, ".state_keys must be a list of names"),
        (
            {"identifier_blacklist": "+12025550143"},
            ".identifier_blacklist must be a list of numbers and other identifiers in quotes",
        ),
        (
            {"identifier_blacklist": [" "]},
            ".identifier_blacklist must be a list of numbers and other identifiers in quotes",
        ),
        (
            {"identifier_blacklist": ["+1*55"]},
            '.identifier_blacklist: a * is allowed only at the end of an entry, like "+1202*"',
        ),
        *(
            (
                {"identifier_source": wrong},
                ".identifier_source must be like sip_header:X-Customer-Id, integration_attribute:NAME or state:NAME",
            )
            for wrong in (5, "", "state", "state:", "cookie:id", "sip_header:X Customer", "state:a:b")
        ),
    ],
)
def test_mistake_says_what_to_write(table, message):
    with pytest.raises(SettingsError) as raised:
        read_table(RepeatCallerSettings, table, WHERE)
    assert str(raised.value) == WHERE + message


# Identifiers


@pytest.mark.parametrize(
    ("source", "given", "expected"),
    [
        ("sip_header:X-Customer-Id", {"sip_headers": {"x-customer-id": "8812"}}, "sip_header:x-customer-id:8812"),
        ("integration_attribute:customer", {"attributes": {"customer": " Ana "}}, "integration_attribute:customer:Ana"),
        ("state:customer_id", {"state": {"customer_id": 8812}}, "state:customer_id:8812"),
    ],
)
def test_source_is_asked_before_the_number(source, given, expected):
    chosen = settings(identifier_source=source)
    assert identifier(chosen, NUMBER, **given) == expected
    assert identifier(chosen, "anonymous", **given) == expected
    assert identifier(chosen, NUMBER) == NUMBER


@pytest.mark.parametrize(
    "nothing", ["", "  ", "None", "null", "undefined", "Unknown", "0", 0, None, True, 1.5, {"id": "1"}, "x" * 300]
)
def test_number_stands_in_for_no_identifier(nothing):
    """What a broken integration sends for everybody must not become one memory of everybody."""
    assert identifier(settings(identifier_source="state:id"), NUMBER, state={"id": nothing}) == NUMBER


def test_two_spellings_are_one_identifier():
    chosen = settings(identifier_source="state:id")
    assert identifier(settings(), "+1 202 555 0143") == NUMBER
    assert identifier(chosen, "", state={"id": "Zoe\u0301"}) == identifier(chosen, "", state={"id": "Zo\u00e9 "})


@pytest.mark.parametrize(
    ("user", "key"),
    [
        ("42", "integration_attribute:user_identity:42"),
        ("+12025550143", "integration_attribute:user_identity:+12025550143"),
        ("integration_attribute:x:7", "integration_attribute:user_identity:integration_attribute%3Ax%3A7"),
        ("null", ""),
        ("x" * 200, ""),
        ("blocked", ""),
    ],
)
def test_user_of_a_website_is_never_a_number(user, key):
    """Also where the agent identifies callers otherwise. The blacklist applies."""
    settings = RepeatCallerSettings(identifier_source="sip_header:X-Id", identifier_blacklist=("blocked",))
    assert identifier(settings, "+12025550143", sip_headers={"x-id": "9"}, user_identity=user) == key


@pytest.mark.parametrize("number", ["", "anonymous", "+266696687", "2025550143", "sip:ana@example.com"])
def test_withheld_number_has_no_memory(number):
    assert identifier(settings(), number) == ""


@given(st.text())
def test_identifier_of_a_source_is_never_a_number(text):
    """And it is one short word, fit for a tag, a heading and a file."""
    found = identifier(settings(identifier_source="state:id"), "", state={"id": text})
    assert found == "" or found.startswith("state:id:")
    assert len(found) <= MOST_CHARACTERS
    assert found.isascii()
    assert not set(found) & set(" ,()[]*\n/\\\"'")


@given(st.text(max_size=8), st.text(max_size=8))
def test_different_identifiers_stay_different(one, other):
    chosen = settings(identifier_source="state:id")
    found = {identifier(chosen, "", state={"id": text}) for text in (f"a{one}z", f"b{other}z")}
    assert len(found) == 2


# The blacklist


@pytest.mark.parametrize(
    ("entry", "number", "listed"),
    [
        ("+12025550143", NUMBER, True),
        ("+1 202 555 0143", NUMBER, True),
        ("+12025550143", "+12025550144", False),
        ("+1202555014", NUMBER, True),
        ("+1202556", NUMBER, False),
        ("+", NUMBER, True),
        ("+1202555014*", NUMBER, True),
        ("+1 202 555 01*", NUMBER, True),
        ("+1202556*", NUMBER, False),
        ("*", NUMBER, True),
    ],
)
def test_blacklisted_number_has_no_memory(entry, number, listed):
    assert identifier(settings(identifier_blacklist=[entry]), number) == ("" if listed else number)


def test_blacklisted_identifier_has_no_memory():
    """Not even their number is remembered then."""
    chosen = settings(identifier_source="state:id", identifier_blacklist=["Test-*", "guest_", "customer-7"])
    for listed in ("test-7", "guest_1", "customer-7"):
        assert identifier(chosen, NUMBER, state={"id": listed}) == ""
    assert identifier(chosen, NUMBER, state={"id": "customer-70"}) == "state:id:customer-70"


def test_person_behind_a_blacklisted_number_has_a_memory():
    """A switchboard's number belongs to many people, a customer's id to one."""
    chosen = settings(identifier_source="sip_header:X-Id", identifier_blacklist=[NUMBER])
    assert identifier(chosen, NUMBER) == ""
    assert identifier(chosen, NUMBER, sip_headers={"x-id": "8812"}) == "sip_header:x-id:8812"


# Several people on one number


def test_relative_at_the_start_locks_memory():
    person = SpeakerTracker("Ana")
    person.heard(1.0, "Ben", relation="her husband")
    assert (person.name, person.locked) == ("Ben", True)


def test_relative_without_a_name_locks_memory():
    person = SpeakerTracker("Ana")
    person.heard(1.0, relation="her husband")
    assert (person.name, person.locked) == ("her husband", True)


def test_unfamiliar_name_alone_keeps_memory():
    """It may be a misheard one."""
    person = SpeakerTracker("Ana")
    person.heard(1.0, "Ben")
    assert (person.name, person.locked) == ("Ana", False)


@pytest.mark.parametrize("name", ["ana", "Ana Lima", "ANA"])
def test_same_person_keeps_memory(name):
    person = SpeakerTracker("Ana")
    person.heard(1.0, name)
    assert not person.locked


def test_first_name_on_a_number_locks_nothing():
    person = SpeakerTracker()
    person.heard(1.0, "Ben")
    assert (person.name, person.locked) == ("Ben", False)


def test_new_name_after_a_long_silence_locks_memory():
    """The name need not come with the first word after it."""
    person = SpeakerTracker("Ana")
    person.heard(1.0, "Ana")
    person.heard(1.0 + LONG_SILENCE)
    person.heard(3.0 + LONG_SILENCE, "Ben")
    person.heard(4.0 + LONG_SILENCE, "Ana")
    assert person.locked


def test_new_name_in_mid_talk_is_a_correction():
    person = SpeakerTracker("Ana")
    person.heard(1.0, "Ana")
    person.heard(1.0 + LONG_SILENCE / 2)
    person.heard(1.0 + LONG_SILENCE, "Anna")
    assert (person.name, person.locked) == ("Anna", False)
