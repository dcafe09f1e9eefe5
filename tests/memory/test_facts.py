from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.memory.facts import CallerFact, FactStore, StatementReading, project, relation
from gateway.memory.memory_log import SCHEMA, LogEntry, Retention
from gateway.memory.stores.documents import NewDocument
from gateway.session import TrustLevel

NOON = datetime(2026, 2, 6, 12, 0, tzinfo=UTC)
ANA = ("maya", "+12025550101")
BEN = ("maya", "+12025550102")
TAGS = ("caller-fact", "agent:maya", "caller:+12025550101")


@dataclass
class Session:
    id: str
    started_at: datetime
    agent: str = "maya"
    caller: str = "+12025550101"
    trust: TrustLevel = TrustLevel.EVERYTHING


def session(name, days=0, who=ANA):
    return Session(f"voice-session:{name}", NOON + timedelta(days=days), *who)


def fact(text, confidence=0.9, type_="preference", turns=(1,)):
    return CallerFact(text, type_, confidence, turns)


def is_current(document, not_before=None):
    """Whether a search shows the document, with or without a limit on its age."""
    retention, now = (Retention(1), not_before + timedelta(days=1)) if not_before else (Retention(), NOON)
    return retention.is_current(document, "maya", now)


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=SCHEMA) as store:
        yield store


@pytest.fixture
def book(store):
    return FactStore(store)


async def learn(book, name, *texts, days=0, who=ANA):
    call = session(name, days, who)
    changed = await book.learn(call, [fact(text) for text in texts], call.started_at + timedelta(minutes=5))
    return [change for change in await book.history(*who) if changed and change.session_id == call.id]


async def texts(book, who=ANA, limit=20, **options):
    return [fact.text for fact in await book.known(*who, limit, **options)]


async def everything(store, book):
    """All that the book left, with documents by their origin instead of their id."""
    documents = await store.newest(tags=("caller-fact",), limit=1000)
    origin = {document.id: document.source_id for document in documents}
    stored = [
        (
            document.source_id,
            document.title,
            document.content,
            document.tags,
            document.created_at,
            document.metadata | {"superseded_by": origin.get(document.metadata.get("superseded_by"))},
        )
        for document in sorted(documents, key=lambda document: document.source_id)
    ]
    return stored, await book.history(*ANA)


# The projection


def projected(*statements):
    """The facts and changes of statements of one call each, as (text, confidence)."""
    days = [f"2026-02-0{number}" for number in range(1, 9)]
    return project(
        [
            LogEntry(f"s{number}", 0, days[number], _content(text, confidence), b"", days[number])
            for number, (text, confidence) in enumerate(statements)
        ]
    )


def _content(text, confidence):
    return {"text": text, "type": "preference", "confidence": confidence, "turns": [1]}


def test_nothing_said_is_nothing_known():
    assert projected() == ([], [])


@pytest.mark.parametrize(
    ("first", "second", "both"), [(0.5, 0.5, 0.75), (0.9, 0.8, 0.98), (0.9, 0.99, 0.99), (1, 1, 1)]
)
def test_repeat_strengthens(first, second, both):
    (known,), (_, change) = projected(("Prefers tea", first), ("Prefers tea", second))
    assert (known.confidence, known.last_said_at) == (both, "2026-02-02")
    texts = f"Prefers tea ({first:.0%} confidence)", f"Prefers tea ({both:.0%} confidence)"
    assert (change.before, change.after) == texts


def test_contradiction_keeps_both_in_sight():
    (old, new), _ = projected(("Prefers mornings", 0.9), ("Prefers evenings", 0.6))
    assert old.superseded_by is new and new.superseded_by is None
    assert new.instead_of == "Prefers mornings"


def test_correction_does_not_name_the_error():
    (old, new), _ = projected(("Is called Anne", 0.9), ("Is called Ana", 0.9))
    assert old.superseded_by is new
    assert new.instead_of == ""


def test_superseded_fact_is_not_strengthened():
    facts, changes = projected(("Prefers mornings", 0.9), ("Prefers evenings", 0.9), ("Prefers mornings", 0.9))
    assert [change.op for change in changes] == ["add", "supersede", "supersede"]
    assert [known.source_id for known in facts] == ["s0#fact-0", "s1#fact-0", "s2#fact-0"]


def test_repeat_is_looked_for_before_opposites():
    """Two facts that stand side by side: the new one says one of them again, and the other not."""
    entries = [("Has two bikes", 0.9), ("Has two red bikes", 0.9), ("Has three old cars", 0.9), ("Has two bikes", 0.9)]
    facts, changes = projected(*entries)
    assert changes[-1].op == "strengthen"
    assert ("s3", 0) in facts[0].keys


def test_refinement_extends_the_fact_it_details():
    (known,), (_, change) = projected(("Has a parrot", 0.8), ("Has a parrot called Coco", 0.9))
    assert (known.source_id, known.describe()) == ("s0#fact-0", "Has a parrot called Coco (98% confidence)")
    assert (change.op, change.before) == ("strengthen", "Has a parrot (80% confidence)")


@pytest.mark.parametrize(
    "texts",
    [
        ("Has locker 5 in Leeds", "Has locker 7", "Has locker 9"),
        ("Lives in Leeds", "Lives in York", "Lives in Hull"),
    ],
)
def test_correction_replaces_every_fact_that_it_excludes(texts):
    facts, _ = projected(*((text, 0.9) for text in texts))
    assert [known.reading.text for known in facts if not known.superseded_by] == [texts[-1]]


# Learning


async def test_fact_is_a_document(store, book):
    await book.learn(session("one"), [fact("Prefers tea", 0.8, turns=(1, 3))], NOON)
    (hit,) = await store.query("tea", limit=5, tags=TAGS)
    document = hit.document
    assert (document.title, document.content) == ("Caller Fact — 2026-02-06", "Prefers tea")
    assert (document.source, document.source_id) == ("caller-fact", "voice-session:one#fact-0")
    assert (document.tags, document.created_at) == (TAGS, NOON)
    assert document.metadata == {
        "session": "voice-session:one",
        "call_id": "one",
        "type": "preference",
        "confidence": 0.8,
        "turns": [1, 3],
        "last_said_at": "2026-02-06T12:00:00.000000+00:00",
        "status": "active",
    }


async def test_repeated_step_changes_nothing(store, book):
    assert len(await learn(book, "one", "Prefers tea", "Is called Ana")) == 2
    before = await everything(store, book)
    assert await learn(book, "one", "Prefers tea", "Is called Ana") == []
    assert await everything(store, book) == before


async def test_better_extraction_replaces_the_first(book):
    await learn(book, "one", "Is called Ana", "Prefers black tea")
    await learn(book, "two", "Prefers black tea", days=1)
    await learn(book, "one", "Is called Ana Diaz")
    assert await texts(book) == ["Prefers black tea", "Is called Ana Diaz"]
    await learn(book, "one")
    assert await texts(book) == ["Prefers black tea"]


async def test_repeat_strengthens_one_fact(book):
    await learn(book, "one", "Prefers text messages")
    (change,) = await learn(book, "two", "Likes text messages", days=3)
    assert (change.op, change.session_id) == ("strengthen", "voice-session:two")
    assert change.before == "Prefers text messages (90% confidence)"
    assert change.after == "Prefers text messages (99% confidence)"
    (known,) = await book.known(*ANA, 5)
    assert (known.confidence, known.session_id) == (0.99, "voice-session:one")
    assert (known.said_at, known.last_said_at) == (NOON, NOON + timedelta(days=3))


async def test_correction_supersedes(book):
    await learn(book, "one", "Is called Anne")
    (change,) = await learn(book, "two", "Is called Ana", days=1)
    assert (change.op, change.before, change.after) == (
        "supersede",
        "Is called Anne (90% confidence)",
        "Is called Ana (90% confidence)",
    )
    assert await texts(book) == ["Is called Ana"]
    new, old = await book.known(*ANA, 5, superseded=True)
    assert (old.text, old.superseded_by, new.instead_of) == ("Is called Anne", new.id, "")


async def test_contradiction_shows_both(book):
    await learn(book, "one", "Prefers mornings")
    await learn(book, "two", "Prefers evenings", days=1)
    (known,) = await book.known(*ANA, 5)
    assert (known.text, known.instead_of) == ("Prefers evenings", "Prefers mornings")


async def test_later_statement_of_one_call_corrects(book):
    changes = await learn(book, "one", "Is called Anne", "Is called Ana")
    assert [change.op for change in changes] == ["add", "supersede"]
    assert await texts(book) == ["Is called Ana"]


async def test_newest_call_wins_not_last_ended(book):
    """An ending that had to wait must not overrule what a newer call taught."""
    await learn(book, "newer", "Prefers evenings", days=1)
    await learn(book, "older", "Prefers mornings")
    assert await texts(book) == ["Prefers evenings"]


async def test_last_said_and_surest_come_first(book):
    await book.learn(session("one"), [fact("Prefers tea", 0.7), fact("Has a dog", 0.9)], NOON)
    await book.learn(session("two", 1), [fact("Drives a van", 0.6)], NOON)
    assert await texts(book) == ["Drives a van", "Has a dog", "Prefers tea"]
    assert await texts(book, limit=1) == ["Drives a van"]


async def test_callers_and_agents_are_apart(book):
    await learn(book, "one", "Prefers tea")
    await learn(book, "two", "Prefers tea", who=BEN)
    await learn(book, "three", "Prefers tea", who=("otto", ANA[1]))
    for who in (ANA, BEN, ("otto", ANA[1])):
        assert [change.op for change in await book.history(*who)] == ["add"]
    assert await texts(book, ("otto", BEN[1])) == []


async def test_history_explains_every_change(book):
    await learn(book, "one", "Prefers mornings")
    await learn(book, "two", "Prefers evenings", days=1)
    await learn(book, "three", "Likes evenings", days=2)
    history = await book.history(*ANA)
    assert [(change.op, change.before, change.after) for change in history] == [
        ("add", "", "Prefers mornings (90% confidence)"),
        ("supersede", "Prefers mornings (90% confidence)", "Prefers evenings (90% confidence)"),
        ("strengthen", "Prefers evenings (90% confidence)", "Prefers evenings (99% confidence)"),
    ]
    assert history[0].at == NOON + timedelta(minutes=5)


async def test_deleted_document_does_not_come_back(store, book):
    await learn(book, "one", "Prefers tea", "Has a dog")
    tea = next(known for known in await book.known(*ANA, 5) if known.text == "Prefers tea")
    await store.delete(tea.id)
    await learn(book, "two", "Drives a van", days=1)
    assert await texts(book) == ["Drives a van", "Has a dog"]
    left = ["Has a dog (90% confidence)", "Drives a van (90% confidence)"]
    assert [change.after for change in await book.history(*ANA)] == left


# Visibility


async def test_superseded_or_expired_fact_is_not_shown(store, book):
    await learn(book, "one", "Prefers mornings", "Has a dog")
    await learn(book, "two", "Prefers evenings", days=2)
    documents = await store.newest(tags=TAGS, limit=9)
    assert sorted(found.content for found in documents if is_current(found)) == ["Has a dog", "Prefers evenings"]
    recent = [found.content for found in documents if is_current(found, NOON + timedelta(days=1))]
    assert recent == ["Prefers evenings"]


async def test_other_documents_are_shown(store):
    """Calls, and what a client of the store calls a fact without saying when it was said."""
    for source in ("voice-call", "caller-fact"):
        document = await store.create(NewDocument("A title", "Some content", source))
        assert is_current(document, NOON + timedelta(days=9999))


# Removing


async def test_reverted_call_teaches_nothing_any_more(book):
    await learn(book, "one", "Prefers tea")
    assert await book.revert("voice-session:one") == 1
    assert await learn(book, "one", "Prefers tea") == []
    assert (await texts(book), await book.history(*ANA)) == ([], [])
    assert await book.revert("voice-session:one") == 0


async def test_call_can_be_reverted_before_it_taught(book):
    assert await book.revert("voice-session:one") == 0
    assert await learn(book, "one", "Prefers tea") == []


async def test_reverted_correction_brings_back_the_fact(book):
    await learn(book, "one", "Is called Anne")
    before = await book.known(*ANA, 5)
    await learn(book, "two", "Is called Ana", days=1)
    await book.revert("voice-session:two")
    assert await book.known(*ANA, 5) == before


async def test_forgetting_leaves_nothing(store, book):
    await learn(book, "one", "Prefers mornings")
    await learn(book, "two", "Prefers evenings", days=1)
    await learn(book, "three", "Has a dog", who=("otto", ANA[1]))
    await learn(book, "four", "Has a cat", who=BEN)
    assert await book.forget("maya", ANA[1]) == 2
    assert await texts(book, ("otto", ANA[1])) == ["Has a dog"]
    assert await book.forget(None, ANA[1]) == 1
    assert [document.content for document in await store.newest(tags=(), limit=9)] == ["Has a cat"]
    assert await store.query("mornings evenings dog", limit=9) == []
    assert (await book.history(*ANA), await texts(book, BEN)) == ([], ["Has a cat"])
    assert await learn(book, "two", "Prefers evenings", days=1) == []


async def test_caller_is_no_pattern(book):
    await learn(book, "one", "Prefers tea")
    assert await book.forget(None, "%") == 0
    assert await texts(book) == ["Prefers tea"]


async def test_retention_hides_at_once_and_deletes_later(book):
    await learn(book, "one", "Prefers tea", "Has a dog")
    await learn(book, "two", "Prefers tea", days=60)
    limit = NOON + timedelta(days=30)
    assert await texts(book, not_before=limit) == ["Prefers tea"]
    assert await book.expire(limit) == 2
    (known,) = await book.known(*ANA, 5)
    assert (known.text, known.session_id, known.confidence) == ("Prefers tea", "voice-session:two", 0.9)
    assert await book.expire(limit) == 0


# Whatever was learned, in whatever order: taking calls back leaves what the others alone would have taught

STATEMENTS = st.sampled_from(
    [
        fact("Prefers mornings", 0.6),
        fact("Prefers evenings", 0.8),
        fact("Likes mornings", 0.9),
        fact("Does not want mornings", 0.7),
        fact("Is called Ana", 0.9, "identity"),
        fact("Is called Ana Diaz", 0.8, "identity"),
        fact("Is called Anne", 0.7, "identity"),
        fact("Has two bikes", 0.5, "constraint"),
        fact("Has three bikes", 0.6, "constraint"),
        fact("Has order number 12", 0.9, "identifier"),
        fact("Has order number 13", 0.9, "identifier"),
    ]
)
SAME_GROUND = [HealthCheck.function_scoped_fixture]  # every example has a place of its own there
CALLS = st.lists(st.tuples(st.integers(0, 3), st.lists(STATEMENTS, max_size=3)), min_size=1, max_size=5)


async def outcome(ground, calls, then=None):
    async with ground.another().opened(schema=SCHEMA) as store:
        book = FactStore(store)
        for name, days, facts in calls:
            await book.learn(session(name, days), facts, NOON)
        if then is not None:
            await then(book)
        return await everything(store, book)


@settings(max_examples=25, suppress_health_check=SAME_GROUND)
@given(calls=CALLS, data=st.data())
async def test_revert_is_as_if_calls_had_not_happened(ground, calls, data):
    named = [(f"call-{number}", *call) for number, call in enumerate(calls)]
    ended = data.draw(st.permutations(named))
    reverted = data.draw(st.lists(st.sampled_from([name for name, *_ in named]), unique=True))

    async def revert(book):
        for name in reverted:
            await book.revert(f"voice-session:{name}")

    rest = [call for call in named if call[0] not in reverted]
    assert await outcome(ground, ended, revert) == await outcome(ground, rest)


@settings(max_examples=12, suppress_health_check=SAME_GROUND)
@given(calls=CALLS, days=st.integers(0, 4))
async def test_expiry_is_as_if_older_calls_had_not_happened(ground, calls, days):
    named = [(f"call-{number}", *call) for number, call in enumerate(calls)]
    rest = [call for call in named if call[1] >= days]
    assert await outcome(ground, named, lambda book: book.expire(NOON + timedelta(days=days))) == await outcome(
        ground, rest
    )


@settings(max_examples=12, suppress_health_check=SAME_GROUND)
@given(calls=CALLS)
async def test_late_repeat_of_endings_changes_nothing(ground, calls):
    named = [(f"call-{number}", *call) for number, call in enumerate(calls)]
    assert await outcome(ground, [*named, *named]) == await outcome(ground, named)


# Relations


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


def _after(known, text, relation):
    """The current facts once a call said `text`, of which a model claims this relation to `known`."""
    claimed = {"relation": relation, "known": known} if relation else {}
    contents = [_content(known, 0.9), _content(text, 0.9) | claimed]
    days = ["2026-02-01", "2026-02-02"]
    entries = [LogEntry(day, 0, day, content, b"", day) for day, content in zip(days, contents, strict=True)]
    return [fact.reading.text for fact in project(entries)[0] if fact.superseded_by is None]


@pytest.mark.parametrize(
    ("known", "text", "relation", "current"),
    [
        ("Lives in Leeds", "Has moved to York", "replaces", ["Has moved to York"]),
        ("Drives an old van", "Gets around in a van", "repeats", ["Drives an old van"]),
        ("Lives in Leeds", "Has moved to York", "", ["Lives in Leeds", "Has moved to York"]),
        (
            "Has a brother in Leeds",
            "Has a sister in Leeds",
            "replaces",
            ["Has a brother in Leeds", "Has a sister in Leeds"],
        ),
        ("Is called Ana", "Has a dog", "replaces", ["Is called Ana", "Has a dog"]),
        (
            "Is at home on Mondays",
            "Is away until Friday",
            "replaces",
            ["Is at home on Mondays", "Is away until Friday"],
        ),
        ("Drinks milk", "Never drinks milk", "repeats", ["Never drinks milk"]),
    ],
)
def test_claimed_relation_is_checked(known, text, relation, current):
    assert _after(known, text, relation) == current


@pytest.mark.parametrize(
    ("old", "new", "relation"),
    [
        ("Is a carpenter", "Works as a carpenter", "repeat"),
        ("Ist Lehrerin", "Arbeitet als Lehrerin", "repeat"),
        ("Es electricista", "Trabaja de electricista", "repeat"),
        ("Est jardinier", "Travaille comme jardinier", "repeat"),
        ("Has address 4 Beech Close", "Lives at 4 Beech Close", "repeat"),
        ("Drives a Golf", "Has a Golf", "repeat"),
        ("Prefers to be called in the evening", "Prefers calls in the evening", "repeat"),
        ("Is a plumber", "Is a teacher", "correction"),
        ("Drives a Skoda", "Drives a Kia", "correction"),
        ("Usually orders a ham sandwich", "Usually orders a cheese sandwich", "correction"),
        ("Prefers a double room", "Prefers a single room", "correction"),
        ("Shops at the Hove branch", "Shops at the Lewes branch", "correction"),
        ("Prefers red wine with meat", "Prefers white wine with fish", None),
        ("Plays the piano", "Plays the cello", None),
        ("Lives in Stirling", "Does not live in Stirling any more", "contradiction"),
        ("Needs a van every Monday", "Needs a van every Friday as well", None),
        ("Is a vegetarian", "Is a plumber", None),
        ("Is called Rose", "Likes roses", None),
    ],
)
def test_claims_in_other_words(old, new, relation):
    assert related(old, new) == relation
