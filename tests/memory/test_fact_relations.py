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


def test_type_that_an_extraction_gave_does_not_decide():
    old, new = (
        StatementReading.of("Needs the fruit basket every Tuesday", "need"),
        StatementReading.of("Wants the fruit basket every Friday", "preference"),
    )
    assert relation(old, new) == "contradiction"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Is called Ana", "Is called Ana Diaz"),
        ("Lives in Dublin", "Lives in Rathmines in Dublin"),
        ("Has a parrot", "Has a parrot called Coco"),
        ("Wants invoices by email", "Wants invoices by email to the accounts team"),
        ("Hat einen Garten", "Hat einen Garten am See"),
        ("Tiene un taller", "Tiene un taller en Burgos"),
        ("A un chien", "A un chien qui s'appelle Filou"),
    ],
)
def test_detail_extends_the_fact(old, new):
    assert related(old, new) == "refinement"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Lives in Dublin", "Now lives in Cork"),
        ("Works at the Northside depot", "Works at the airport depot"),
        ("Has a landlord called Piet Visser", "Has a landlord called Joan Hale"),
        ("Has locker 17 B", "Has locker 20 C"),
        ("Gets coal from Harris and Sons", "Gets coal from Ridley Fuels"),
        ("Prefers to travel from Leeds", "Prefers to travel from Hull"),
        ("Takes tea with lemon", "Takes tea with honey"),
        ("Has meals delivered to 3 Elm Court", "Has meals delivered to 18 Station Road"),
        ("Wohnt in Bremen", "Wohnt jetzt in Kiel"),
        ("Hat die Kundennummer 1188", "Hat die Kundennummer 2299"),
        ("Arbeitet bei Schmidt", "Arbeitet bei Kröger"),
        ("Vive en Bilbao", "Ahora vive en Oviedo"),
        ("Tiene el número de socio 12345", "Tiene el número de socio 54321"),
        ("Habite à Nantes", "Habite à Rennes"),
        ("A le numéro d'adhérent 4711", "A le numéro d'adhérent 8899"),
    ],
)
def test_same_claim_with_another_value_is_a_correction(old, new):
    assert related(old, new) == "correction"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Has a fax machine in the shop", "Has no fax machine in the shop any more"),
        ("Rides to work on a scooter", "Does not ride a scooter any more"),
        ("Has no garage", "Has a garage"),
        ("Trinkt abends Kaffee", "Trinkt keinen Kaffee mehr"),
        ("Come carne", "Ya no come carne"),
        ("Mange du fromage le soir", "Ne mange plus de fromage"),
        ("Wants the table at the front", "Wants the table at the back"),
        ("Möchte lieber morgens Termine", "Möchte lieber abends Termine"),
        ("Prefiere pagar en efectivo", "Prefiere pagar con tarjeta"),
        ("Préfère le lundi", "Préfère le jeudi"),
    ],
)
def test_denial_or_other_choice_is_a_contradiction(old, new):
    assert related(old, new) == "contradiction"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Teaches history at Ashdown College", "Is a history teacher at Ashdown"),
        ("Prefers emails to phone calls", "Prefers to be emailed rather than called"),
        ("Prefers a bright room by the garden", "Prefers a bright garden room"),
        ("Hat zwei Pferde", "Hat 2 Pferde"),
        ("Möchte Briefe lieber per Post", "Möchte Briefe am liebsten per Post"),
        ("Tiene dos perros", "Tiene 2 perros"),
        ("A deux enfants", "A 2 enfants"),
    ],
)
def test_paraphrase_is_a_repeat(old, new):
    assert related(old, new) == "repeat"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Has a sister who lives in Leeds", "Has a brother who lives in Leeds"),
        ("Has a son called Max", "Has a son called Finn"),
        ("Has a dog", "Has a dog sitter every Monday"),
        ("Keeps a horse", "Needs hay, straw and oats for the horse"),
        ("Needs a plumber every March", "Needs a painter every March"),
        ("Owns a barn in Kent", "Owns a boat in Kent"),
        ("Works for the bakery on weekdays", "Works for the museum at weekends"),
        ("Prefers window seats on buses", "Prefers aisle seats on flights"),
        ("Hat einen Bruder in Ulm", "Hat eine Schwester in Ulm"),
        ("Tiene un hermano en Vigo", "Tiene una prima en Vigo"),
        ("A un cousin à Lyon", "A une tante à Lyon"),
        ("Lives in Leeds", "Lives at their mother's until Friday"),
        ("Wohnt in Köln", "Wohnt bis Ende März in Bonn"),
        ("Can be reached on 202 555 0145", "Can be reached on 202 555 0152 this week"),
    ],
)
def test_similar_and_temporary_facts_take_no_place(old, new):
    assert related(old, new) is None


@given(st.text(max_size=60), st.sampled_from(["preference", "identifier"]))
def test_fact_never_contradicts_itself(text, type_):
    assert related(text, text, type_) in ("repeat", None)


WORDS = st.lists(
    st.sampled_from("has a dog sitter in Leeds York 4 5 mornings not the son Ana until".split()), max_size=7
)


@given(WORDS.map(" ".join), WORDS.map(" ".join))
def test_any_two_texts_can_be_compared(old, new):
    assert related(old, new) in ("repeat", "refinement", "correction", "contradiction", None)
