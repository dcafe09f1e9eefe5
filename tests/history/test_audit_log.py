"""The audit log in both databases: what an entry holds, the chain of hashes, retention."""

import asyncio
import logging
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gateway import metrics
from gateway.errors import StoreUnavailable
from gateway.history.audit_log import SCHEMA, AuditAction, AuditFilter, AuditLog, AuditNote, AuditOutcome, cli_actor
from gateway.settings import Secret

SECRET = Secret("a-key-that-only-the-tests-use")
ANA = "+12025550143"
NEW_YEAR = datetime(2026, 1, 1, tzinfo=UTC)
ALL = AuditFilter()


class Clock:
    def __init__(self) -> None:
        self.time = NEW_YEAR

    def __call__(self) -> datetime:
        self.time += timedelta(days=1)
        return self.time


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=SCHEMA) as opened:
        yield opened


@pytest.fixture
def audit(store):
    return AuditLog(store, SECRET, now=Clock())


async def _erasures(audit, count):
    for _ in range(count):
        await audit.write(AuditNote(AuditAction.CALLER_ERASE, "admin", caller=ANA))


async def test_entry_has_everything_but_the_number(audit, store):
    note = AuditNote(AuditAction.CALLER_ERASE, "tok_1", AuditOutcome.INCOMPLETE, "maya", "s1", ANA, "d1", "192.0.2.7")
    await audit.write(note)
    [entry] = await audit.page(ALL, limit=10)
    assert (entry.number, entry.at, entry.actor) == (1, "2026-01-02T00:00:00.000000+00:00", "tok_1")
    assert (entry.action, entry.outcome, entry.agent, entry.session) == ("caller.erase", "incomplete", "maya", "s1")
    assert (entry.caller, entry.item, entry.address) == ("…0143", "d1", "192.0.2.7")
    assert entry.caller_hash == audit.hash_of(ANA) != AuditLog(store, Secret("another")).hash_of(ANA)
    assert not any(ANA[1:8] in str(value) for row in await store.fetch("SELECT * FROM audit_log") for value in row)


async def test_note_without_an_action_is_not_stored(audit):
    await audit.write(AuditNote(actor="admin"))
    assert await audit.count(ALL) == 0


async def test_long_texts_are_cut(audit):
    await audit.write(AuditNote(AuditAction.CALL_DIAL, "admin", agent="m" * 1000))
    assert len((await audit.page(ALL, limit=1))[0].agent) == 200


async def test_pages_are_newest_first(audit):
    await _erasures(audit, 5)
    first = await audit.page(ALL, limit=2)
    assert [entry.number for entry in first] == [5, 4]
    assert [entry.number for entry in await audit.page(ALL, limit=9, below=4)] == [3, 2, 1]


async def test_filters(audit):
    await audit.write(AuditNote(AuditAction.FACT_ERASE, "admin", caller=ANA))
    await audit.write(AuditNote(AuditAction.FACT_CORRECT, "tok_1", caller="+12025550199"))
    await audit.write(AuditNote(AuditAction.LOGIN, "admin"))

    async def found(**chosen):
        entries = await audit.page(AuditFilter(**chosen), limit=10)
        assert len(entries) == await audit.count(AuditFilter(**chosen))
        return [entry.number for entry in entries]

    assert await found(actor="admin") == [3, 1]
    assert await found(action="fact") == [2, 1]
    assert await found(action="fact.erase") == [1]
    assert await found(action="f") == []
    assert await found(caller_hash=audit.hash_of(ANA)) == [1]
    assert await found(since="2026-01-03", before="2026-01-04") == [2]
    await audit.write(AuditNote(AuditAction.LOGOUT, "login:3f2a"))
    assert await found(actor="login") == await found(actor="login:3f2a") == [4]
    assert await found(actor="log") == []


async def test_block_that_raises_is_noted_as_failed(audit):
    with pytest.raises(ValueError, match="no"):
        async with audit.noted(AuditNote(AuditAction.CALL_REVERT, "admin")):
            raise ValueError("no")
    async with audit.noted(AuditNote(AuditAction.CALL_REVERT, "admin")) as note:
        note.outcome = AuditOutcome.INCOMPLETE
    async with audit.noted(AuditNote(AuditAction.CALL_REVERT, "admin")):
        pass
    assert [entry.outcome for entry in await audit.page(ALL, limit=9)] == ["done", "incomplete", "failed"]


# The chain


async def test_untouched_log_is_verified(audit):
    assert await audit.verify() == await audit.verify("")
    await _erasures(audit, 3)
    checked = await audit.verify()
    assert (checked.entries, checked.problem) == (3, "")
    assert checked.last_hash == (await audit.page(ALL, limit=1))[0].hash


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE audit_log SET actor = 'cli:ben' WHERE number = 2", "entry 2 was changed"),
        ("UPDATE audit_log SET at = '2026-01-09' WHERE number = 1", "entry 1 was changed"),
        ("DELETE FROM audit_log WHERE number = 2", "entries between 1 and 3 are missing"),
        ("DELETE FROM audit_log WHERE number = 1", "entries before 2 are missing"),
        ("UPDATE audit_log SET number = number - 1 WHERE number > 1", "entry 1 was changed"),
    ],
)
async def test_changes_are_found(audit, store, statement, problem):
    await _erasures(audit, 4)
    if "number - 1" in statement:
        await store.change("DELETE FROM audit_log WHERE number = 1")
    await store.change(statement)
    assert (await audit.verify()).problem == problem


async def test_deleted_end_is_found_with_a_noted_hash(audit, store):
    await _erasures(audit, 3)
    noted = (await audit.verify()).last_hash
    await store.change("DELETE FROM audit_log WHERE number = 3")
    assert (await audit.verify()).problem == ""
    assert (await audit.verify(noted)).problem == "no entry has this hash"


async def test_concurrent_entries_form_one_chain(audit):
    await asyncio.gather(*(_erasures(audit, 3) for _ in range(5)))
    checked = await audit.verify()
    assert (checked.entries, checked.problem) == (15, "")


# Retention


async def test_trimmed_log_is_verified(audit, store):
    await _erasures(audit, 5)
    assert await audit.trim(NEW_YEAR + timedelta(days=3.5)) == 3
    assert await audit.trim(NEW_YEAR + timedelta(days=3.5)) == 0
    assert [entry.number for entry in await audit.page(ALL, limit=9)] == [6, 5, 4]
    checked = await audit.verify()
    assert (checked.entries, checked.problem) == (3, "")
    await store.change("DELETE FROM audit_log WHERE number = 4")
    assert (await audit.verify()).problem == "entries before 5 are missing"


async def test_whole_log_can_be_trimmed(audit):
    await _erasures(audit, 3)
    assert await audit.trim(NEW_YEAR + timedelta(days=100)) == 3
    [entry] = await audit.page(ALL, limit=9)
    assert (entry.number, entry.action, entry.actor, entry.item) == (4, "audit.trim", "gateway", "3")
    await _erasures(audit, 1)
    assert (await audit.verify()).problem == ""


# Without the database


class AwayStore:
    """A database that can't be reached, or does not answer."""

    def __init__(self, *, hangs: bool = False) -> None:
        self._hangs = hangs

    async def run(self, work):
        if self._hangs:
            await asyncio.Event().wait()
        raise StoreUnavailable("away")


@pytest.mark.parametrize("hangs", [False, True])
async def test_action_goes_on_without_the_database(hangs, caplog):
    before = metrics.AUDIT_FAILURES._value.get()
    audit = AuditLog(AwayStore(hangs=hangs), SECRET, write_seconds=0.01)
    with caplog.at_level(logging.ERROR):
        async with audit.noted(AuditNote(AuditAction.CALLER_ERASE, "admin", agent="maya", caller=ANA)):
            pass
    [line] = caplog.records
    assert line.message == "audit entry could not be stored"
    assert (line.action, line.actor, line.agent, line.caller) == ("caller.erase", "admin", "maya", "…0143")
    assert metrics.AUDIT_FAILURES._value.get() == before + 1


async def test_log_line_has_the_hash(audit, caplog):
    with caplog.at_level(logging.INFO):
        await _erasures(audit, 1)
    assert caplog.records[-1].message == "administrative action"
    assert caplog.records[-1].hash == (await audit.verify()).last_hash


def test_cli_actor_is_the_user_of_the_machine(monkeypatch):
    monkeypatch.setenv("LOGNAME", "ada")
    assert cli_actor() == "cli:ada"


def test_docs_list_every_action():
    documented = re.findall(r"^\| (`[a-z]+[^|]*) \|", Path("docs/erasure-and-audit.md").read_text(), re.MULTILINE)
    actions = [name for row in documented for name in re.findall("`([^`]*)`", row)]
    assert set(AuditAction) <= set(actions)
