import phonenumbers
import pytest

from gateway.errors import NumberNotAllowed, SettingsError
from gateway.telephony.phone_numbers import ANONYMOUS, AllowList, DialingRules, caller_id, searched_digits


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


# Numbers that may be dialled

US, JAMAICA, CANADA, UK = "+12025550143", "+18765550100", "+14165550123", "+442079460123"
COSTLY = {
    "+12029765550": "+1202976",
    "+4911833": "+49118",
    "+448712345678": "+44871",
    "+491371234567": "+49137",
    "+33892123456": "+33892",
    "+34806123456": "+34806",
    "+34905123456": "+34905",
    "+39899123456": "+39899",
    "+41900123456": "+41900",
    "+43930123456": "+43930",
    "+31906123456": "+31906",
    "+3290312345": "+32903",
    "+469391234567": "+46939",
    "+48701234567": "+4870",
    "+351760123456": "+35176",
    "+3531550123456": "+3531550",
    "+611902123456": "+611902",
    "+81990123456": "+81990",
    "+420900123456": "+420900",
    "+883510001234567": "+883",
    "+19005550100": "+1900",
    "+449098790000": "+44909",
    "+447012345678": "+4470",
    "+499005123456": "+49900",
    "+33899123456": "+33899",
    "+491801234567": "+49180",
    "+881612345678": "+881",
    "+870772001234": "+870",
    "+88213300655": "+882",
    "+979123456789": "+979",
}


def may_dial(rules: DialingRules, target: str, own: str = "+12025550100") -> bool:
    try:
        rules.check(target, own)
    except NumberNotAllowed as error:
        assert "OUTBOUND_ALLOWED" in str(error)
        assert target not in str(error)
        return False
    return True


def test_own_country_may_be_dialled() -> None:
    """Only that: other countries with the same code are a known target of fraud."""
    allowed = [number for number in (US, JAMAICA, CANADA, UK) if may_dial(DialingRules(), number)]
    assert allowed == [US]
    assert may_dial(DialingRules(), "+447700900123", own=UK)
    assert not may_dial(DialingRules(), US, own="")


def test_prefixes_replace_the_own_country() -> None:
    rules = DialingRules({"+44 20", "+1876"})
    assert [number for number in (US, JAMAICA, CANADA, UK) if may_dial(rules, number)] == [JAMAICA, UK]
    assert all(may_dial(DialingRules({"*"}), number, own="") for number in (US, JAMAICA, CANADA, UK))


@pytest.mark.parametrize(("number", "prefix"), COSTLY.items())
def test_costly_number_has_to_be_named(number: str, prefix: str) -> None:
    code = f"+{phonenumbers.parse(number, None).country_code}"
    too_broad = {"*", *([code] if code != prefix else [code[:-1]])}
    assert not may_dial(DialingRules(), number, own=number)
    assert not may_dial(DialingRules(too_broad), number)
    with pytest.raises(SettingsError, match="transfer_to: .* is a premium-rate or satellite number; add its prefix"):
        DialingRules(too_broad, known=[number])
    assert may_dial(DialingRules({prefix}, known=[number]), number)


@pytest.mark.parametrize(
    ("prefix", "costly", "ordinary"),
    [
        ("+447", "+447012345678", "+447700900123"),
        ("+491", "+491371234567", "+4915123456789"),
        ("+19", "+19002345678", "+19175550123"),
        ("+1202", "+12029765550", US),
        ("+336", "+33899123456", "+33612345678"),
    ],
)
def test_prefix_of_ordinary_numbers_names_no_costly_ones(prefix: str, costly: str, ordinary: str) -> None:
    """A prefix for mobile phones must not open the premium-rate numbers beside them."""
    assert may_dial(DialingRules({prefix}), ordinary)
    assert not may_dial(DialingRules({prefix, "*"}), costly)


def test_more_digits_do_not_hide_a_costly_number() -> None:
    assert not may_dial(DialingRules({"*"}), "+4990051234567")
    assert may_dial(DialingRules({"*"}), "+49301234567890")


def test_targets_in_the_settings_may_be_abroad() -> None:
    rules = DialingRules(known=[UK, "sip:desk@example.com"])
    assert may_dial(rules, UK)
    assert not may_dial(rules, "+442079460124")


def test_sip_address_is_no_way_around() -> None:
    assert may_dial(DialingRules(), "sip:desk@pbx.example.net")
    assert may_dial(DialingRules(), "sip:+442079460123@pbx.example.net")
    assert not may_dial(DialingRules({"*"}), "sip:+881612345678@sip.example.net")


@pytest.mark.parametrize("entry", ["1", "+", "+0", "**", "+1x", "GB"])
def test_wrong_prefix_says_what_to_write(entry: str) -> None:
    with pytest.raises(SettingsError) as raised:
        DialingRules({entry})
    assert str(raised.value).startswith(f"OUTBOUND_ALLOWED: {entry!r} is not a prefix; write it like +1")


@pytest.mark.parametrize(
    "text, digits",
    [
        ("+1 (202) 555-0143", "12025550143"),
        ("tel:+12025550143", "12025550143"),
        ("+49 (0)30 1234567", "49301234567"),
        ("00 49 30 1234567", "49301234567"),
        ("030/1234567", "301234567"),
        ("202\N{NON-BREAKING HYPHEN}555\N{EN DASH}0143", "2025550143"),
        ("0143", "0143"),
        ("12", ""),
        ("Ana 555", ""),
        ("5 - 3", ""),
        ("", ""),
    ],
)
def test_number_is_searched_in_any_spelling(text: str, digits: str) -> None:
    assert searched_digits(text) == digits
