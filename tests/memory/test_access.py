import itertools
from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import SettingsError
from gateway.memory.access import (
    KEY_PAUSE,
    AccessChange,
    MemoryAccess,
    PinEntry,
    PinResult,
    TrustPolicy,
    check_common_pin,
    read_trust,
    spoken_pin,
)
from gateway.session import TrustLevel
from gateway.settings import Secret
from gateway.telephony.phone_numbers import Attestation
from tests.fakes.call_parts import FakeMemory, FakeMemorySource

WHERE = "gateway.toml, [agents.maya]: memory.trust"
RIGHT, WRONG = PinResult.RIGHT, PinResult.WRONG


def policy(**table) -> TrustPolicy:
    return read_trust(table, WHERE)


# Settings


def test_levels_are_ordered_and_have_names():
    assert TrustLevel.NONE < TrustLevel.NAME < TrustLevel.SUMMARIES < TrustLevel.EVERYTHING
    assert [str(level) for level in TrustLevel] == ["none", "name", "summaries", "everything"]


def test_every_level_can_be_set():
    keys = [field.name for field in fields(TrustPolicy) if field.name not in ("pin", "trusted_trunks")]
    read = policy(pin="4711", **dict.fromkeys(keys, "summaries"))
    assert {getattr(read, key) for key in keys} == {TrustLevel.SUMMARIES}
    assert read.pin == Secret("4711")
    assert "4711" not in repr(read)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("everything", " must be a table"),
        (
            {"trusted": "name"},
            ": unknown key trusted; known are"
            " allow_listed, attested, failed, partly_attested, pin, trusted_trunks, unattested, with_pin, withheld",
        ),
        ({"attested": "all"}, ".attested must be one of none, name, summaries, everything"),
        ({"failed": 0}, ".failed must be one of none, name, summaries, everything"),
        ({"pin": 4711}, ".pin must be 4 to 12 digits in quotes"),
        ({"pin": "471"}, ".pin must be 4 to 12 digits in quotes"),
        ({"pin": "47 11"}, ".pin must be 4 to 12 digits in quotes"),
        ({"pin": "٤٧١١"}, ".pin must be 4 to 12 digits in quotes"),
        ({"with_pin": "everything"}, ".with_pin needs a pin"),
        ({"trusted_trunks": "pbx.sip.twilio.com"}, ".trusted_trunks must be a list of names in quotes"),
    ],
)
def test_mistake_says_what_to_write(table, message):
    with pytest.raises(SettingsError) as raised:
        read_trust(table, WHERE)
    assert str(raised.value) == WHERE + message


# Levels


def test_levels_of_the_contract_are_the_default():
    levels = {attestation: policy().level(attestation) for attestation in Attestation}
    assert levels.pop(Attestation.FULL) is TrustLevel.EVERYTHING
    assert levels.pop(Attestation.FAILED) is TrustLevel.NONE
    assert set(levels.values()) == {TrustLevel.SUMMARIES}
    assert policy().level(Attestation.NONE, withheld=True) is TrustLevel.NONE
    assert policy().level(Attestation.NONE, allow_listed=True) is TrustLevel.EVERYTHING
    assert policy().level(Attestation.FAILED, allow_listed=True) is TrustLevel.NONE


def test_sip_header_proves_nothing_unless_its_trunk_is_trusted():
    read = policy(trusted_trunks=["pbx.sip.twilio.com"])
    assert read.level(Attestation.FULL, allow_listed=True, trunk="other.sip.twilio.com") is TrustLevel.SUMMARIES
    assert read.level(Attestation.FAILED, trunk="") is TrustLevel.NONE
    assert read.level(Attestation.NONE, trunk="pbx.sip.twilio.com") is TrustLevel.EVERYTHING


def test_number_opens_the_name_beside_a_pin():
    read = policy(pin="4711")
    believed = [attestation for attestation in Attestation if attestation is not Attestation.FAILED]
    assert {read.level(attestation) for attestation in believed} == {TrustLevel.NAME}
    assert read.level(Attestation.FAILED) is TrustLevel.NONE
    assert policy(pin="4711", attested="summaries").level(Attestation.FULL) is TrustLevel.SUMMARIES


def test_each_attestation_has_its_level():
    read = policy(attested="everything", partly_attested="summaries", unattested="name", failed="none")
    assert [read.level(attestation) for attestation in Attestation] == [
        TrustLevel.EVERYTHING,
        TrustLevel.SUMMARIES,
        TrustLevel.NAME,
        TrustLevel.NONE,
        TrustLevel.NAME,
    ]


def test_allow_list_lifts_a_number_that_may_be_true():
    read = policy(unattested="none", attested="everything", allow_listed="summaries")
    assert read.level(Attestation.NONE, allow_listed=True) is TrustLevel.SUMMARIES
    assert read.level(Attestation.FULL, allow_listed=True) is TrustLevel.EVERYTHING
    assert read.level(Attestation.FAILED, allow_listed=True) is TrustLevel.NONE
    assert read.level(Attestation.NONE, withheld=True, allow_listed=True) is TrustLevel.NONE


@given(st.lists(st.sampled_from(TrustLevel), min_size=7, max_size=7), st.booleans(), st.booleans())
def test_allow_list_never_lowers_the_level(levels, withheld, allow_listed):
    names = [field.name for field in fields(TrustPolicy) if field.name not in ("pin", "trusted_trunks")]
    read = TrustPolicy(**dict(zip(names, levels, strict=True)))
    for attestation in Attestation:
        plain = read.level(attestation, withheld=withheld)
        assert plain <= read.level(attestation, withheld=withheld, allow_listed=allow_listed)


# The PIN by keypad


def press(keys: str, length: int = 4, *, entry: PinEntry | None = None, start: float = 100.0) -> list[str]:
    entry = entry or PinEntry()
    return list(filter(None, (entry.pressed(key, start + second, length) for second, key in enumerate(keys))))


@pytest.mark.parametrize("keys", ["4711", "4711#", "12*4711", "#4711", "4A711", "4712 4711", "47#4711"])
def test_pin_is_complete_with_its_last_digit(keys):
    assert press(keys)[-1] == "4711"


def test_pin_of_unknown_length_ends_with_a_hash_key():
    assert press("12*4711#", 0) == ["4711"]
    assert press("471199", 0) == []
    assert press("123#") == ["123"]
    assert press(f"{'4' * 100}#", 0) == ["4" * 13]  # one digit too many


def test_key_hit_by_chance_does_not_spoil_the_try():
    entry = PinEntry()
    assert press("9", entry=entry) == []
    assert press("4711", entry=entry, start=100.1 + KEY_PAUSE) == ["4711"]


# The PIN by voice


@pytest.mark.parametrize(
    "text",
    [
        "my pin is four seven one one",
        "My PIN is 4711.",
        "My PIN's 4 7 1 1, thanks.",
        "The PIN code is, uh, 47 11",
        "pin: four seven double one",
        "PIN number forty-seven eleven",
        "Four seven one one is my pin",
        "My passcode is four, seven, one, one. And I'd like to book two rooms.",
        "Meine PIN lautet vier sieben eins eins",
        "Mi clave es cuatro siete uno uno",
        "Mi código PIN es cuatro siete uno uno",
        "Mon code PIN est quatre sept un un",
        "Set my PIN to four seven one one",
        "Setze meine PIN auf vier sieben eins eins",
        "Pon mi PIN en cuatro siete uno uno",
        "Mets mon code PIN à quatre sept un un",
    ],
)
def test_pin_can_be_spoken(text):
    assert spoken_pin(text, length=4) == spoken_pin(text) == "4711"


@pytest.mark.parametrize("text", ["Four seven one one.", "It's 4711", "Yes, it's four seven, uh, one one", "47 11"])
def test_answer_to_the_question_is_a_pin(text):
    assert spoken_pin(text, question="Could you tell me your PIN?") == "4711"
    assert spoken_pin(text, question="And your order number?") == ""


@pytest.mark.parametrize(
    "text",
    [
        "four seven one one",
        "my pin is three digits long",
        "my pin is four seven one",
        "my pin is four seven one one two",
        "the pin on my card is 4711",
        "I forgot my pin",
        "can you pin that for me",
        "my order number is 4711",
        "pin",
        "",
    ],
)
def test_talk_about_numbers_is_no_try(text):
    assert spoken_pin(text, length=4) == ""


DIGIT_WORDS = {
    "English": "zero one two three four five six seven eight nine".split(),
    "German": "null eins zwei drei vier fünf sechs sieben acht neun".split(),
    "Spanish": "cero uno dos tres cuatro cinco seis siete ocho nueve".split(),
    "French": "zéro un deux trois quatre cinq six sept huit neuf".split(),
}


@given(st.sampled_from(sorted(DIGIT_WORDS)), st.from_regex(r"[0-9]{4,12}", fullmatch=True))
def test_any_pin_can_be_spoken_digit_by_digit(language, pin):
    spoken = " ".join(DIGIT_WORDS[language][int(digit)] for digit in pin)
    assert spoken_pin(f"PIN {spoken}") == spoken_pin(f"PIN {spoken}", length=len(pin)) == pin


@given(st.text())
def test_whatever_is_heard_or_pressed_does_no_harm(text):
    entry = PinEntry()
    tried = [spoken_pin(text), spoken_pin(text, question="pin"), *map(entry.pressed, text, itertools.count())]
    assert "471100471100" not in tried


def test_common_pin_is_right_or_wrong():
    pin = Secret("4711")
    assert [check_common_pin(pin, tried) for tried in ("4711", "4712", "47110")] == [RIGHT, WRONG, WRONG]
    assert check_common_pin(None, "4711") is None


# The access of a live call

ANA, BERND = "+12025550143", "state:customer:7"


@pytest.fixture
def source() -> FakeMemorySource:
    return FakeMemorySource(**{ANA: FakeMemory("Ana"), BERND: FakeMemory("Bernd")})


@pytest.fixture
def access(source: FakeMemorySource) -> MemoryAccess:
    access = MemoryAccess(TrustLevel.NAME, caller=ANA)
    access.open(source)
    return access


@pytest.fixture
def changes(access: MemoryAccess) -> list[AccessChange]:
    seen: list[AccessChange] = []
    access.subscribe(seen.append)
    return seen


@pytest.mark.parametrize("level", TrustLevel)
def test_level_includes_those_below(level):
    access = MemoryAccess(level)
    assert [access.allows(other) for other in TrustLevel] == [other <= level for other in TrustLevel]


def test_locked_memory_allows_nothing():
    access = MemoryAccess()
    access.locked = True
    assert [level for level in TrustLevel if access.allows(level)] == [TrustLevel.NONE]


def test_memory_of_the_caller_is_loaded(access, source):
    assert access.memory is source.memories[ANA]


def test_gateway_without_memory_has_none():
    access = MemoryAccess(caller=ANA)
    assert access.memory is None
    assert not access.can_erase


def test_level_rises_and_never_falls(access, changes):
    access.raise_level(TrustLevel.EVERYTHING)
    access.raise_level(TrustLevel.NAME)
    assert access.level is TrustLevel.EVERYTHING
    assert changes == [AccessChange.LEVEL_RAISED] * 2


def test_other_caller_has_another_memory(access, source, changes):
    access.change_caller(BERND)
    assert (access.caller, access.memory) == (BERND, source.memories[BERND])
    assert source.memories[ANA].cancelled
    assert changes == [AccessChange.CALLER_CHANGED]


def test_name_of_the_speaker_changes_the_content(access, changes):
    access.name_speaker("Bernd", locked=True)
    assert (access.person, access.locked) == ("Bernd", True)
    assert changes == [AccessChange.CONTENT_CHANGED]


def test_known_name_changes_nothing(access, changes):
    access.name_speaker("Ana", locked=True)
    assert (access.person, access.locked, changes) == ("Ana", False, [])


def test_revoked_memory_is_locked(access, changes):
    access.revoke()
    assert access.locked
    assert changes == [AccessChange.REVOKED]


def test_observers_see_the_change_in_effect_and_in_order(access):
    seen = []
    access.subscribe(lambda change: seen.append(("first", access.locked)))
    access.subscribe(lambda change: seen.append(("second", access.locked)))
    access.revoke()
    assert seen == [("first", True), ("second", True)]


def test_closed_access_has_no_observers_and_keeps_its_level(access, source, changes):
    access.raise_level(TrustLevel.EVERYTHING)
    access.close()
    access.revoke()
    assert changes == [AccessChange.LEVEL_RAISED]
    assert source.memories[ANA].cancelled
    assert access.level is TrustLevel.EVERYTHING


async def test_memory_of_the_caller_is_erased(access, source):
    await access.erase()
    assert source.erased == [ANA]
