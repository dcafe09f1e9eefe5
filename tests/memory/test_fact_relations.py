import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.memory.fact_relations import StatementReading, relation


def related(old, new, type_="preference"):
    return relation(StatementReading.of(old, type_), StatementReading.of(new, type_))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Prefers text messages", "Prefers text messages"),
        ("Prefers text messages", "Likes a text message"),
        ("Prefers SMS", "Prefers texts"),
        ("Is called Ana Diaz", "Name is Ana"),
        ("Has phone number 202 555 0143", "Phone number is +12025550143"),
        ("Can be reached on 202-555-0143", "Can be called back on (202) 555 0143"),
        ("Does not want calls at work", "Can't take calls at work"),
        ("Needs a new filter every month", "Needs new filters every month"),
    ],
)
def test_repeat_is_recognised(old, new):
    assert related(old, new) == "repeat"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Is called Anne", "Is called Ana"),
        ("Is called Ana", "Is called Ana Diaz"),
        ("Lives in Boston", "Is based in Washington"),
        ("Works for Acme", "Works at Globex"),
        ("Has mobile number 202 555 0143", "Has mobile number 202 555 0144"),
        ("Has email address ana@example.com", "Email is ana@example.org"),
        ("Has customer number 4471", "Customer ID is 4472"),
        ("Has two bikes", "Has three bikes"),
        ("Works until five", "Works until 6"),
    ],
)
def test_new_value_is_a_correction(old, new):
    assert related(old, new) == "correction"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Prefers mornings", "Prefers afternoons"),
        ("Prefers a phone call", "Prefers a text message"),
        ("Is only available on Mondays", "Is only available on Fridays"),
        ("Likes deliveries in the morning", "Prefers delivery in the evening"),
        ("Wants the newsletter", "Does not want the newsletter"),
        ("Hates the newsletter", "Likes the newsletter"),
        ("Will send the signed form on Monday", "Will send the signed form on Friday"),
    ],
)
def test_opposite_is_a_contradiction(old, new):
    assert related(old, new) == "contradiction"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Prefers mornings", "Prefers text messages"),
        ("Prefers deliveries in the morning", "Prefers phone calls in the afternoon"),
        ("Can't take calls on Mondays", "Can't take calls on Fridays"),
        ("Prefers mornings", "Does not like afternoons"),
        ("Is called Ana", "Lives in Ana"),
        ("Lives in Boston", "Lives in a house with two dogs"),
        ("Works at Acme", "Works at night"),
        ("Has mobile number 202 555 0143", "Has work number 202 555 0144"),
        ("Wants it", "Needs them"),
    ],
)
def test_other_facts_stand_side_by_side(old, new):
    assert related(old, new) is None


def test_caller_may_have_two_orders():
    assert related("Has order number 12", "Has order number 13", "identifier") is None


def test_facts_of_two_types_are_not_compared():
    old, new = (
        StatementReading.of("Needs text messages", "need"),
        StatementReading.of("Prefers text messages", "preference"),
    )
    assert relation(old, new) is None


@given(st.text(max_size=60), st.sampled_from(["preference", "identifier"]))
def test_fact_never_contradicts_itself(text, type_):
    assert related(text, text, type_) in ("repeat", None)
