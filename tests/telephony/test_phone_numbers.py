import pytest

from gateway.errors import SettingsError
from gateway.telephony.phone_numbers import ANONYMOUS, AllowList, caller_id


@pytest.mark.parametrize(
    "claimed",
    [
        None,
        "",
        "anonymous",
        "Anonymous",
        "unknown",
        "restricted",
        "unavailable",
        "blocked",
        "+266696687",
        "+7378742833",
        "+2562533",
        "+8656696",
        "+86282452253",
        "12345",
        "2025550143",
        "sip:alice@pbx.example.net",
        "client:alice",
        "+1202555014",
        "+1202555014343434343",
        "+12025550143;ext=5",
        "+12025550143 ext. 5",
        "+1202555HELP",
        "+1ANONYMOUS",
        "+15550143",
        "+86 5669 6",
        "+266 696 687",
    ],
)
def test_withheld_and_odd_numbers_are_anonymous(claimed: str | None) -> None:
    assert caller_id(claimed) == ANONYMOUS


@pytest.mark.parametrize("claimed", ["+12025550143", " +12025550143 ", "+1 202 555 0143", "+1 (202) 555-0143"])
def test_a_full_number_is_e164(claimed: str) -> None:
    assert caller_id(claimed) == "+12025550143"


def test_nobody_is_admitted_by_default() -> None:
    allowed = AllowList(frozenset())
    assert not allowed
    assert not allowed.admits("+12025550143")
    assert not allowed.admits(ANONYMOUS)


def test_listed_numbers_are_admitted() -> None:
    allowed = AllowList(frozenset({"+1 202 555 0143"}))
    assert allowed.admits("+12025550143")
    assert not allowed.admits("+12025550144")
    assert not allowed.admits(ANONYMOUS)


def test_star_admits_everybody() -> None:
    assert AllowList(frozenset({"*"})).admits(ANONYMOUS)


def test_wrong_entry_says_what_to_write() -> None:
    with pytest.raises(SettingsError) as raised:
        AllowList(frozenset({"202 555 0143"}))
    assert str(raised.value) == "ALLOWED_CALLERS: '202 555 0143' is not an E.164 number; write it like +12025550143"
