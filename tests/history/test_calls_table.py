"""The table of finished calls: lists, filters and figures, each read through an index however many calls there are."""

import itertools
from dataclasses import replace
from datetime import UTC, timedelta

import numpy as np
import pytest

from gateway.errors import StoreUnavailable
from gateway.finalization.document import call_document
from gateway.finalization.summary.call_summary import CallSummary
from gateway.history.calls_table import (
    CallerRow,
    CallRowFilter,
    CallsTable,
    percentiles,
    stage_seconds,
)
from gateway.history.stores import open_local_store, open_stores
from gateway.memory.facts import CallerFact, FactStore
from gateway.response_time import CountedFrom, ResponseTime
from gateway.session import Consent, EndReason, TrustLevel
from gateway.text.person_names import searched_words
from tests.calls.aftermath import CALLER, START, a_session
from tests.history.test_stores import FINISHED, OLD

OTHER = "+12025550188"
A_SUMMARY = CallSummary("", ("Brakes",), (), (), (), "", "test")


@pytest.fixture
async def store(ground, tmp_path):
    stores = await open_stores(tmp_path, ground.database_url)
    yield stores.memory
    await stores.close()


@pytest.fixture
async def local(tmp_path):
    store = await open_local_store(tmp_path / "local")
    yield store
    await store.close()


async def a_call(store, *, day=0, **fields):
    session = a_session(started_at=START + timedelta(days=day), **fields)
    await CallsTable(store).write(session, document_id="d", summary_by="test")
    return session


async def test_call_reads_back(store):
    timing = ResponseTime(transcript=0.2134, first_frame=0.84).as_json()
    receipt = {"block": "Likes rye.", "items": [{}, {}]}
    session = await a_call(store, receipt=receipt, timings=[timing, {"llm_request": -0.2}])
    call = await CallsTable(store).find(session.uuid[:8])
    assert (call.session_id, call.uuid, call.caller, call.carrier) == (session.id, session.uuid, CALLER, "twilio")
    assert (call.turns, call.memory_items, call.seconds, call.outcome) == (2, 2, 262.0, "caller hung up")
    assert (call.document_id, call.summary_by, call.receipt) == ("d", "test", receipt)
    assert call.timings == (timing, ResponseTime(llm_request=-0.2, counted_from=CountedFrom.ENGINE).as_json())


async def test_consent_is_kept_with_the_call(store):
    asked, other = await a_call(store, consent=Consent.REFUSED), await a_call(store)
    table = CallsTable(store)
    assert [(await table.find(session.id)).consent for session in (asked, other)] == ["refused", ""]
    assert (await table.find(asked.id)).as_json()["consent"] == "refused"
    await table.forget(caller=CALLER)
    assert await store.fetch("SELECT * FROM call_details") == []


async def test_engine_and_time_to_first_audio_are_kept(store):
    session, other = await a_call(store, engine="xai", first_audio=0.42), await a_call(store, engine="xai")
    table = CallsTable(store)
    found = [await table.find(one.id) for one in (session, other)]
    assert [(call.engine, call.first_audio) for call in found] == [("xai", pytest.approx(0.42)), ("xai", None)]
    [before, since] = await table.first_audio(["2026-01-01", "2026-02-01"])
    assert (before.tolist(), since.tolist()) == ([], [pytest.approx(0.42)])
    await table.forget(caller=CALLER)
    assert await store.fetch("SELECT * FROM call_engines") == []


async def test_second_write_updates(store):
    session = await a_call(store, consent=Consent.AGREED)
    session.end_reason = EndReason.ENGINE_LOST
    await CallsTable(store).write(session, document_id="d", summary_by="again")
    [call] = await CallsTable(store).newest()
    assert (call.outcome, call.summary_by) == ("voice engine lost", "again")


async def test_ambiguous_beginning_finds_nothing(store):
    await a_call(store)
    await a_call(store)
    assert await CallsTable(store).find("") is None


async def test_forgotten_caller_has_no_calls(store):
    session = await a_call(store)
    other = await a_call(store, caller=OTHER)
    assert await CallsTable(store).forget(caller=CALLER, agent="leo") == []
    assert await CallsTable(store).forget(caller=CALLER) == [session.id]
    assert [row.session_id for row in await CallsTable(store).page(CallRowFilter())] == [other.id]


async def test_pages_continue_where_the_last_ended(store):
    sessions = [await a_call(store, day=day // 2) for day in range(5)]  # two at the same time
    calls, seen, after = CallsTable(store), [], ""
    while page := await calls.page(CallRowFilter(), after=after, limit=2):
        seen += [row.session_id for row in page]
        after = page[-1].cursor
    assert len(seen) == len(set(seen)) == 5 and seen[0] == sessions[-1].id


@pytest.mark.parametrize(
    "wanted, found",
    [
        (CallRowFilter(agent="leo"), [2]),
        (CallRowFilter(outcomes=("transferred",)), [1]),
        (CallRowFilter(outcomes=("transferred", "caller hung up")), [2, 1, 0]),
        (CallRowFilter(carrier="twilio", caller=CALLER), [1, 0]),
        (CallRowFilter(digits="0188"), [2]),
        (CallRowFilter(since=(START + timedelta(days=1)).isoformat()), [2, 1]),
        (CallRowFilter(before=(START + timedelta(days=1)).isoformat()), [0]),
        (CallRowFilter(agent="' OR true --"), []),
    ],
)
async def test_wanted_calls_are_found(store, wanted, found):
    sessions = [
        await a_call(store),
        await a_call(store, day=1, end_reason=EndReason.TRANSFERRED),
        await a_call(store, day=2, agent="leo", caller=OTHER),
    ]
    calls = CallsTable(store)
    page = await calls.page(wanted)
    assert [row.session_id for row in page] == [sessions[index].id for index in found]
    assert [call.session_id for call in await calls.newest(wanted)] == [row.session_id for row in page]
    assert await calls.count(wanted) == len(found)
    every = await calls.page(CallRowFilter())
    assert [row for row in every if wanted.admits(row)] == page


async def test_no_ids_find_no_calls(store):
    calls = CallsTable(store)
    assert await calls.by_ids([]) == await calls.finished([]) == []


async def test_ids_keep_their_order(store):
    first, second = await a_call(store), await a_call(store, day=1)
    rows = await CallsTable(store).by_ids([first.id, "voice-session:unknown", second.id])
    assert [row.session_id for row in rows] == [first.id, second.id]


async def test_callers_come_with_their_last_call(store):
    await a_call(store)
    last = await a_call(store, day=3)
    other = await a_call(store, day=1, caller=OTHER)
    calls = CallsTable(store)
    assert await calls.callers() == [
        CallerRow(CALLER, 2, last.started_at.isoformat(), last.id, 0),
        CallerRow(OTHER, 1, other.started_at.isoformat(), other.id, 0),
    ]
    assert (await calls.callers(CallRowFilter(digits="0188"), limit=5))[0].caller == OTHER
    assert await calls.callers(CallRowFilter(digits="999")) == []
    assert (await calls.count_callers(), await calls.count_callers(CallRowFilter(digits="0188"))) == (2, 1)
    assert (await calls.agents(), await calls.oldest(CallRowFilter())) == (["maya"], START.isoformat())


async def test_latencies_are_grouped_by_time_step(store):
    measured = [ResponseTime(llm_request=-0.2, first_frame=0.84), ResponseTime(llm_request=0.1, first_frame=123.0)]
    elsewhere = ResponseTime(first_frame=0.07, counted_from=CountedFrom.TRANSCRIPT)
    await a_call(store, timings=[measured[0].as_json(), elsewhere.as_json()])
    await a_call(store, day=1, timings=[measured[1].as_json()], receipt={"items": [{}]})
    await a_call(store, day=1)
    starts = [(START + timedelta(days=day)).isoformat() for day in range(3)]
    steps = await CallsTable(store).time_steps(starts)
    assert [(step.outcomes.total(), step.with_memory) for step in steps] == [(1, 0), (2, 1), (0, 0)]
    answers = np.vstack([step.answers for step in steps])
    first_frame, transcript = stage_seconds(answers, "first_frame"), stage_seconds(answers, "transcript")
    assert sorted(first_frame.round(2).tolist()) == pytest.approx([0.84, 123.0])
    assert percentiles(stage_seconds(answers, "llm_request"), [0, 50, 100]) == [0.0, 0.0, 0.1]
    assert stage_seconds(answers, "first_frame", measured=False).tolist() == pytest.approx([0.07])
    assert transcript.size == 0 and percentiles(transcript, [50]) == []


async def test_returning_callers_are_counted(store):
    await a_call(store)
    await a_call(store, day=5)
    await a_call(store, day=5, caller=OTHER)
    assert await CallsTable(store).callers_since((START + timedelta(days=4)).isoformat()) == (2, 1)
    assert await CallsTable(store).callers_since((START + timedelta(days=9)).isoformat()) == (0, 0)


async def a_named_call(store, name, **fields):
    """A call whose document has a name."""
    session = a_session(**{"started_at": START, **fields})
    await store.create(call_document(session, replace(A_SUMMARY, caller_name=name), UTC))
    await CallsTable(store).write(session, document_id="d", summary_by="test")
    return session


async def test_caller_is_known_by_the_name_of_any_call(store):
    await a_named_call(store, "Zoë Müller")
    nameless = await a_call(store, day=1)
    other = await a_call(store, day=1, caller=OTHER)
    calls = CallsTable(store)
    assert await calls.names_of_callers([CALLER, OTHER, ""]) == {CALLER: "Zoë Müller"}
    rows = await calls.by_ids([nameless.id, other.id])
    assert await calls.names_of_calls(rows) == {nameless.id: "Zoë Müller", other.id: ""}
    assert await calls.names_of_calls([]) == {}


async def test_people_who_share_a_number_are_all_named(store):
    first = await a_named_call(store, "Ana Ruiz")
    await a_named_call(store, "Tom Becker", started_at=START + timedelta(days=1))
    calls = CallsTable(store)
    assert await calls.names_of_callers([CALLER]) == {CALLER: "Tom Becker, Ana Ruiz"}
    assert await calls.names_of_calls(await calls.by_ids([first.id])) == {first.id: "Ana Ruiz"}


async def test_names_of_any_number_of_callers(store):
    """A statement has a limited number of parameters: 32,766 in SQLite as Python brings it, 65,535 in PostgreSQL."""
    table = CallsTable(store)
    await a_named_call(store, "Zoë Müller")
    others = [f"+1202555{number:06}" for number in range(70_000)]
    assert await table.names_of_callers([*others, CALLER]) == {CALLER: "Zoë Müller"}


async def test_unverified_call_renames_nobody(store):
    await a_named_call(store, "Ana Ruiz")
    await a_named_call(store, "Mallory Quinn", started_at=START + timedelta(days=1), trust=TrustLevel.SUMMARIES)
    await a_named_call(store, "Grace Kim", caller=OTHER, trust=TrustLevel.SUMMARIES)
    names = await CallsTable(store).names_of_callers([CALLER, OTHER])
    assert names == {CALLER: "Ana Ruiz", OTHER: "Grace Kim"}


async def learn_name(store, session, name, *, speaker):
    fact = CallerFact(f"Is called {name}", "identity", 0.95, (0,))
    await FactStore(store).learn(session, [fact], session.started_at, speakers=[speaker])


async def correct_name(store, name):
    facts = FactStore(store)
    [known] = [fact for fact in await facts.known("maya", CALLER, 10) if fact.text.startswith("Is called ")]
    now = START + timedelta(days=5)
    assert await facts.correct("maya", CALLER, known.id, f"Is called {name}", by=f"operator:{name}", now=now)


async def test_operators_correction_renames_the_caller_everywhere(store):
    session = await a_named_call(store, "Anna Reese")
    other_agent = await a_named_call(store, "Anna Reese", agent="leo", started_at=START + timedelta(days=1))
    nameless = await a_call(store, day=2)
    await learn_name(store, session, "Anna Reese", speaker="Anna Reese")
    calls, facts = CallsTable(store), FactStore(store)
    for name in ("Ana Ruíz", "Anne Royce"):  # corrected twice
        await correct_name(store, name)
        assert await calls.names_of_callers([CALLER, OTHER]) == {CALLER: name}
        rows = await calls.by_ids([session.id, other_agent.id, nameless.id])
        assert await calls.names_of_calls(rows) == {row.session_id: name for row in rows}
        assert await calls.count(CallRowFilter(name=searched_words(name))) == 3
    assert await calls.count(CallRowFilter(name=searched_words("ruiz"))) == 0
    await facts.forget("maya", CALLER)
    assert await calls.names_of_callers([CALLER]) == {CALLER: "Anna Reese"}
    assert await store.fetch("SELECT * FROM corrected_names") == []


async def test_correction_names_one_of_the_people_on_a_number(store):
    first = await a_named_call(store, "Anna Reese")
    await learn_name(store, first, "Anna Reese", speaker="Anna Reese")
    await a_named_call(store, "Tom Becker", started_at=START + timedelta(days=1))
    await correct_name(store, "Ana Ruiz")
    assert await CallsTable(store).names_of_callers([CALLER]) == {CALLER: "Tom Becker, Ana Ruiz"}


async def test_callers_correction_renames_until_it_is_reverted(store):
    """A name that sounds much the same is the same person's, so the document has the first one."""
    first = await a_named_call(store, "Marek")
    second = await a_named_call(store, "Marek", started_at=START + timedelta(days=1))
    await learn_name(store, first, "Marek", speaker="Marek")
    await learn_name(store, second, "Darek", speaker="Marek")
    calls = CallsTable(store)
    assert await calls.names_of_callers([CALLER]) == {CALLER: "Darek"}
    await FactStore(store).revert(second.id)
    assert await calls.names_of_callers([CALLER]) == {CALLER: "Marek"}


async def test_unverified_correction_renames_nobody(store):
    first = await a_named_call(store, "Marek")
    await learn_name(store, first, "Marek", speaker="Marek")
    unverified = {"started_at": START + timedelta(days=1), "trust": TrustLevel.SUMMARIES}
    for name in ("Darek", "Derek"):
        session = await a_named_call(store, name, **unverified)
        await learn_name(store, session, name, speaker="Marek")
    calls = CallsTable(store)
    assert await calls.names_of_callers([CALLER]) == {CALLER: "Marek"}
    assert await calls.names_of_calls(await calls.by_ids([session.id])) == {session.id: "Derek"}


@pytest.mark.parametrize(
    "text, found",
    [
        ("zoe", True),
        ("MÜLLER", True),
        ("muller zo", True),
        ("o'neill", True),
        ("ller", False),
        ("zoe ana", False),
    ],
)
async def test_calls_are_found_by_name(store, text, found):
    await a_named_call(store, "Zoë O’Neill-Müller")
    await a_call(store, day=1)
    await a_call(store, caller=OTHER)
    wanted = CallRowFilter(name=searched_words(text))
    assert await CallsTable(store).count(wanted) == (2 if found else 0)
    assert [row.caller for row in await CallsTable(store).callers(wanted)] == ([CALLER] if found else [])


@pytest.mark.parametrize(
    "name, texts",
    [
        ("Jürgen Müller", ["Mueller", "Juergen", "Müller", "Mu\u0308ller", "muller", "jurg"]),
        ("Mueller", ["Müller", "MÜLLER", "müll"]),
        ("Otto Bär", ["Baer", "bar"]),
        ("Jörg Özdemir", ["Joerg", "Oezdemir"]),
        ("Ernst Strauß", ["Strauss"]),
        ("Ines Strauss", ["Strauß"]),
        ("José Nuñez", ["Jose", "Nunez"]),
        ("Jose Nunez", ["José", "Nuñez"]),
        ("Łukasz", ["Lukasz"]),
        ("Søren Ågård", ["Soren", "Soeren", "Aagaard", "Agard"]),
    ],
)
async def test_calls_are_found_by_other_spellings_of_a_name(store, name, texts):
    await a_named_call(store, name)
    calls = CallsTable(store)
    assert [await calls.count(CallRowFilter(name=searched_words(text))) for text in texts] == [1] * len(texts)


async def test_letter_pairs_find_no_other_names(store):
    await a_named_call(store, "John Suzuki Baur")
    calls = CallsTable(store)
    assert [await calls.count(CallRowFilter(name=searched_words(text))) for text in ("Joe", "Sue", "Bauer")] == [0] * 3


async def test_name_follows_the_document(store):
    session = await a_named_call(store, "Anna Reese", consent=Consent.AGREED)
    calls, renamed = CallsTable(store), call_document(session, replace(A_SUMMARY, caller_name="Ana Ruiz"), UTC)
    [document] = await store.by_source_ids([session.id])
    await store.replace(document.id, renamed.content)
    await calls.summary_rewritten(session.id, "other")
    call = await calls.find(session.id)
    assert (call.caller_name, call.summary_by, call.consent) == ("Ana Ruiz", "other", "agreed")
    await calls.summary_rewritten("voice-session:unknown", "other")
    assert await store.fetch("SELECT count(*) FROM call_details") == [(1,)]


async def test_names_of_an_earlier_version_are_found(ground, tmp_path):
    """They were in documents only, beside a table of consents."""
    stores = await open_stores(tmp_path / "data", ground.database_url)
    session = await a_named_call(stores.memory, "Ana Ruiz", consent=Consent.AGREED)

    def go_back(connection):
        connection.execute("CREATE TABLE call_consents (session_id TEXT PRIMARY KEY, consent TEXT NOT NULL)")
        connection.execute("INSERT INTO call_consents SELECT session_id, consent FROM call_details")
        connection.execute("DROP TABLE call_details")
        if ground.database_url:
            connection.execute("DELETE FROM schemas_made")

    await stores.memory.run(go_back)
    await stores.close()
    stores = await open_stores(tmp_path / "data", ground.database_url)
    call = await CallsTable(stores.memory).find(session.id)
    assert (call.caller_name, call.consent) == ("Ana Ruiz", "agreed")
    await stores.close()


@pytest.mark.parametrize(
    "agent, carrier, outcomes, caller, since",
    [*itertools.product(("", "maya"), ("", "twilio"), ((), ("transferred",)), ("", CALLER), ("", "2026"))],
)
async def test_every_filter_has_its_index(local, agent, carrier, outcomes, caller, since):
    """No page reads the whole table or sorts it."""
    where, values = CallRowFilter(agent, carrier, outcomes, caller, since=since).where()
    query = f"SELECT * FROM finished_calls WHERE {where} ORDER BY started_at DESC, session_id DESC LIMIT 50"
    plan = await local.look(lambda connection: connection.execute(f"EXPLAIN QUERY PLAN {query}", values).fetchall())
    [detail] = [row[-1] for row in plan]
    assert "USING INDEX finished_calls_by" in detail


def old_tables():
    """The three tables of the previous version; the dump was written by it."""
    dump = (OLD / "gateway.sql").read_text().replace(" WITHOUT ROWID", "")
    return [statement for statement in dump.split(";\n") if " call" in statement.split("(")[0]]


async def test_calls_of_the_previous_version_are_kept(ground, tmp_path):
    async with ground.opened() as store:
        await store.run(lambda connection: [connection.execute(statement) for statement in old_tables()])
    stores = await open_stores(tmp_path / "data", ground.database_url)
    [call] = await CallsTable(stores.memory).newest()
    assert (call.session_id, call.agent, call.caller, call.carrier) == (FINISHED, "maya", "+12025550144", "telnyx")
    assert (call.outcome, call.seconds, call.turns, call.memory_items) == ("caller hung up", 60.0, 2, 1)
    assert (call.document_id, call.summary_by) == ("doc-2", "extractive")
    assert call.receipt == {"block": "Likes rye.", "items": [{"id": "f1", "kind": "fact"}]}
    assert call.timings == (ResponseTime(None, 0.2, 0.21, 0.5, 0.7, 0.84, CountedFrom.ENGINE).as_json(),)
    await stores.close()
    async with ground.opened() as store:
        with pytest.raises(StoreUnavailable):
            await store.look(lambda connection: connection.execute("SELECT * FROM call_lines"))
