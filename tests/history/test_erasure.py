import asyncio
import shutil
import sqlite3
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import httpx
import orjson
import pytest
from cryptography.fernet import Fernet

from gateway.calls.recording_files import RecordingCipher
from gateway.cluster import redis_store
from gateway.cluster.directory import CallDirectory, ClusterTimeouts
from gateway.cluster.event_stream import EventStream, SharedErasure
from gateway.cluster.store import NoSharedStore
from gateway.errors import StoreUnavailable
from gateway.finalization.archive import Archive
from gateway.finalization.document import call_document
from gateway.finalization.job_table import FinalizationJob, JobTable
from gateway.history.api_tokens import TokenScope, TokenTable
from gateway.history.audit_log import AuditAction, AuditFilter, AuditLog, AuditNote
from gateway.history.call_log import CallLog
from gateway.history.calls_table import CallRowFilter, CallsTable
from gateway.history.erasure import DataLocations, Eraser, NoSharedData, holding
from gateway.history.live_events import EventPublisher
from gateway.history.stores import Stores, open_stores
from gateway.memory.facts import CallerFact, FactStore
from gateway.memory.pin_codes import PinCodeStore
from gateway.memory.pinned_topics import PinnedTopicStore, TopicNote
from gateway.memory.remem_client import RememClient
from gateway.memory.state import CallerStateStore
from gateway.memory.stores.documents import NewDocument
from gateway.memory.stores.store import MemoryStore
from gateway.session import Speaker, Turn, VoiceSession
from gateway.settings import Secret
from tests.calls.aftermath import CALLER, START, SUMMARY, a_session
from tests.fakes.remem import FakeRemem
from tests.redis_server import running_redis
from tests.stage import ADMIN, running_gateway

OTHER = "+12025550188"
WORD, OTHER_WORD = "pomegranates", "walnuts"
KEY = Secret("key of the tests")


@dataclass
class House:
    """All places where calls leave something."""

    stores: Stores
    log: CallLog
    places: DataLocations

    @property
    def store(self) -> MemoryStore:
        return self.stores.memory

    def eraser(self, remem: RememClient | None = None, shared=None, **options) -> Eraser:
        return Eraser(self.stores, self.places, remem, KEY, shared or NoSharedData(), **options)

    async def holding(self, *words: str) -> list[str]:
        return await self.eraser().holding(words)

    async def remembers(self, session: VoiceSession, word: str) -> None:
        """The call left its word everywhere."""
        await CallsTable(self.store).write(
            replace(session, receipt={"block": word}), document_id="d", summary_by="test"
        )
        await FactStore(self.store).learn(session, [CallerFact(f"Likes {word}", "preference", 0.9, (1,))], START)
        await PinnedTopicStore(self.store).note(session, [TopicNote("Fruit order", status=f"Waits for {word}")], START)
        now = session.started_at
        await CallerStateStore(self.store).save(
            session.agent, session.caller, {"fruit": word}, session_id=session.id, now=now
        )
        summary = replace(SUMMARY, context=f"Wants {word}.")
        await self.store.create(call_document(session, summary, None))
        spoken = replace(session, turns=[Turn(Speaker.CALLER, word, START)])
        await JobTable(self.stores.local).save(FinalizationJob(spoken, summary=summary))
        self.log.open_call(session, {})
        EventPublisher(self.log).of(session).caller_said(word, START)
        await self.log.flushed()
        await Archive(self.places.archive_dir, retention_days=7).write(session.uuid, f"CALLER: {word}\n")
        self.records(session.uuid, session.caller, session.agent, word)

    def records(self, name: str, caller: str, agent: str, word: str) -> None:
        header = {"t": 0, "note": "call", "content": {"caller": caller, "agent": {"name": agent}}}
        (self.places.record_dir / f"{name}.jsonl").write_bytes(orjson.dumps(header) + b"\n" + word.encode())

    async def tells(self, caller: str = CALLER, agent: str = "maya") -> tuple[list[str], dict]:
        facts = await FactStore(self.store).known(agent, caller, 10)
        return [fact.text for fact in facts], await CallerStateStore(self.store).load(agent, caller)


@pytest.fixture
async def house(ground, tmp_path):
    places = DataLocations(tmp_path / "data", tmp_path / "archive", tmp_path / "recordings")
    places.record_dir.mkdir()
    log = CallLog(places.log)
    stores = await open_stores(places.data_dir, ground.database_url)
    yield House(stores, log, places)
    await stores.close()
    log.close()


@asynccontextmanager
async def another_gateway(tmp_path):
    """A second gateway as the remote store."""
    environ = {
        "DATA_DIR": str(tmp_path / "remote"),
        "VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "remote-archive"),
        "GATEWAY_ADMIN_TOKEN": ADMIN,
    }
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(running_gateway(environ, tmp_path))
        http = await stack.enter_async_context(httpx.AsyncClient())
        yield RememClient(url, Secret(ADMIN), http)


# Forgetting a caller


async def test_forget_reaches_what_nodes_keep_for_each_other(house, tmp_path):
    async with running_redis(tmp_path / "redis") as server:
        client = redis_store.connect(server.url)
        directory = CallDirectory(redis_store.RedisStore(client), ClusterTimeouts())
        writing = asyncio.create_task(directory.run())
        share = EventStream(client, directory).share
        sessions = {WORD: a_session(), OTHER_WORD: a_session(caller=OTHER)}
        for word, session in sessions.items():
            await house.remembers(session, word)
            EventPublisher(house.log, share=share).of(session).caller_said(word, START)
            directory.append(session.id, word.encode())
        await directory.flushed()
        assert await kept_in(client, WORD) == ["voice-gateway:events", f"voice-gateway:journal:{sessions[WORD].id}"]
        eraser = house.eraser(shared=SharedErasure(client))
        undone = await eraser.erase(await eraser.find(CALLER))
        assert (undone.is_complete, undone.deleted["entries in Redis"]) == (True, 2)
        assert await kept_in(client, WORD) == []
        assert len(await kept_in(client, OTHER_WORD)) == 2
        writing.cancel()
        await client.acl_setuser("default", commands=["-bgrewriteaof"])
        undone = await eraser.erase(await eraser.find(CALLER))
        assert (undone.is_complete, undone.unscrubbed) == (False, ("the files of Redis",))
        await server.kill()
        undone = await eraser.erase(await eraser.find(OTHER))
        assert undone.unscrubbed == ("Redis",)
        await client.aclose()


async def kept_in(client, word):
    """The names in Redis under which there is this word."""
    found = []
    async for name in client.scan_iter():
        is_stream = await client.type(name) == b"stream"
        values = await client.xrange(name) if is_stream else await client.lrange(name, 0, -1)
        found += [name.decode()] * (word in repr(values))
    return sorted(found)


async def test_forget_leaves_no_word_in_any_file(house):
    """The house is open all the while, as by a running gateway."""
    await house.remembers(a_session(), WORD)
    await house.remembers(a_session(caller=OTHER), OTHER_WORD)
    house.records("call-without-a-word", CALLER, "maya", WORD)
    held_by = await house.holding(WORD)
    assert len(held_by) >= 5
    tables = ["call_receipts", "caller_state", "documents", "memory_entries"]
    found = [place.removeprefix("the table ") for place in held_by if place.startswith("the table ")]
    assert found == (tables if house.store.description == "postgresql" else [])
    eraser = house.eraser()
    undone = await eraser.erase(await eraser.find(CALLER))
    assert undone.is_complete
    assert undone.deleted == {
        "files": 3,
        "call log entries": 1,
        "fact statements": 1,
        "topic entries": 1,
        "state entries": 1,
        "PIN codes": 0,
        "API tokens": 0,
        "documents": 1,
        "finalization jobs": 1,
        "archived calls": 0,
        "calls": 1,
        "remote documents": 0,
        "entries in Redis": 0,
    }
    assert await house.holding(WORD, "pomegran", CALLER) == []
    assert not await eraser.find(CALLER)


async def test_forget_clears_pages_that_were_freed_before(house):
    """A finalization job holds the words of its call until it is done, and free pages hold them afterwards."""
    session = a_session()
    await house.remembers(session, OTHER_WORD)
    off = "PRAGMA secure_delete = OFF"  # some builds of SQLite have it on
    await house.stores.local.look(lambda connection: connection.execute(off).fetchall())
    job = FinalizationJob(replace(session, turns=[Turn(Speaker.CALLER, f"{WORD} " * 30_000, START)]))
    await JobTable(house.stores.local).save(job)
    await JobTable(house.stores.local).finish(job)
    assert await house.holding(WORD) != []
    await house.eraser().erase(await house.eraser().find(CALLER))
    assert await house.holding(WORD) == []


async def test_forget_leaves_others_alone(house):
    await house.remembers(a_session(), WORD)
    await house.remembers(other := a_session(caller=OTHER), OTHER_WORD)
    before = await house.eraser().find(OTHER)
    await house.eraser().erase(await house.eraser().find(CALLER))
    assert await house.eraser().find(OTHER) == before
    assert list(before.sessions) == [other.id] and before.unfinished == {other.id} and len(before.files) == 2
    assert await house.tells(OTHER) == ([f"Likes {OTHER_WORD}"], {"fruit": OTHER_WORD})
    [hit] = await house.store.query(OTHER_WORD, limit=1, tags=[f"caller:{OTHER}", "voice-session"])
    assert OTHER_WORD in hit.document.content


async def test_forget_with_one_agent_leaves_the_other(house):
    await house.remembers(a_session(), WORD)
    await house.remembers(a_session(agent="leo"), OTHER_WORD)
    undone = await house.eraser().erase(await house.eraser().find(CALLER, "maya"))
    assert (undone.deleted["calls"], undone.deleted["documents"], undone.deleted["files"]) == (1, 1, 2)
    assert await house.holding(WORD) == []
    assert await house.tells(agent="leo") == ([f"Likes {OTHER_WORD}"], {"fruit": OTHER_WORD})


async def test_forgotten_call_teaches_nothing_any_more(house):
    session = a_session()
    await house.remembers(session, WORD)
    await house.eraser().erase(await house.eraser().find(CALLER))
    await FactStore(house.store).learn(session, [CallerFact("Likes tea", "preference", 0.9, (1,))], START)
    await CallerStateStore(house.store).save("maya", CALLER, {"fruit": "tea"}, session_id=session.id, now=START)
    assert await house.tells() == ([], {})


async def test_call_that_went_on_at_another_node_is_void(house):
    """Nothing here knew of it when its caller was forgotten."""
    await house.remembers(a_session(), WORD)
    eraser = house.eraser()
    await eraser.erase(await eraser.find(CALLER, "maya"))
    later = datetime.now(UTC) + timedelta(minutes=1)
    assert await eraser.is_erased(a_session())
    assert not await eraser.is_erased(a_session(started_at=later))
    assert not await eraser.is_erased(a_session(agent="leo"))
    assert not await eraser.is_erased(a_session(caller=OTHER))
    assert await eraser.is_erased(a_session(caller="state:id:7", number=CALLER))


async def test_what_another_node_has_is_swept(house, tmp_path):
    """Its folders are its own; what was forgotten it learns from the store."""
    forgotten, reverted = a_session(), a_session(caller=OTHER)
    await house.remembers(forgotten, WORD)
    await house.remembers(reverted, OTHER_WORD)
    elsewhere = DataLocations(tmp_path / "other data", tmp_path / "other archive", tmp_path / "other recordings")
    for mine, theirs in zip(house.places.folders[1:], elsewhere.folders[1:], strict=True):
        shutil.copytree(mine, theirs)
    elsewhere.data_dir.mkdir()
    for path in (house.places.log,):
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("VACUUM INTO ?", (str(elsewhere.data_dir / path.name),))
    there = Eraser(house.stores, elsewhere, None, KEY, NoSharedData())
    assert await there.sweep() == 0
    await house.eraser().revert(await CallsTable(house.store).find(reverted.id))
    await house.eraser().erase(await house.eraser().find(CALLER))
    assert await there.sweep() == 1
    assert holding([WORD], elsewhere) == [] and len(holding([OTHER_WORD], elsewhere)) == 3
    assert await there.sweep() == 0


async def test_tombstone_tells_when_and_not_who(house):
    await house.remembers(a_session(), WORD)
    await house.eraser().erase(await house.eraser().find(CALLER))
    query = "SELECT caller, at FROM forgotten"
    [(caller, at)] = await house.store.look(lambda connection: connection.execute(query).fetchall())
    assert len(caller) == 32 and at.startswith("20")


async def test_note_about_a_caller_is_forgotten(house):
    await house.store.create(NewDocument("Note", WORD, "note", ("caller-note", f"caller:{CALLER}")))
    undone = await house.eraser().erase(await house.eraser().find(CALLER))
    assert undone.deleted["documents"] == 1 and await house.holding(WORD) == []


async def test_database_that_is_read_is_named(house):
    """A reader keeps the old pages alive: that is said, not passed over."""
    await house.remembers(a_session(), WORD)
    with closing(sqlite3.connect(house.places.data_dir / "gateway.db")) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM finished_calls").fetchall()
        undone = await house.eraser(scrub_timeout=0.1).erase(await house.eraser().find(CALLER))
    assert undone.unscrubbed == ("gateway.db",) and not undone.is_complete


async def test_verification_finds_a_word_anywhere(house):
    stray = house.places.data_dir / "deep" / "notes.txt"
    stray.parent.mkdir()
    stray.write_text("She likes POMEGRANATES.")
    assert holding(["nothing", WORD], house.places) == [stray.resolve()]


async def test_verification_finds_a_word_between_two_pieces(house):
    """Large files are read piece by piece, a mebibyte each."""
    (house.places.record_dir / "long.jsonl").write_text("x" * ((1 << 20) - 3) + WORD)
    assert [path.name for path in holding(["tea towel", WORD], house.places)] == ["long.jsonl"]


# Reverting a call


async def test_reverted_call_taught_nothing(house):
    earlier, later = a_session(), a_session(started_at=START + timedelta(days=1))
    await house.remembers(earlier, OTHER_WORD)
    await house.remembers(later, WORD)
    [call, _] = await CallsTable(house.store).newest(CallRowFilter(caller=CALLER))
    undone = await house.eraser().revert(call)
    assert undone.deleted == {
        "fact statements": 1,
        "topic entries": 1,
        "state entries": 1,
        "documents": 1,
        "finalization jobs": 1,
        "remote documents": 0,
    }
    assert await house.tells() == ([f"Likes {OTHER_WORD}"], {"fruit": OTHER_WORD})
    [topic] = await PinnedTopicStore(house.store).topics("maya", CALLER)
    assert (topic.calls, topic.status) == (1, f"Waits for {OTHER_WORD}")
    assert [finished_call.session_id for finished_call in await CallsTable(house.store).newest()] == [
        later.id,
        earlier.id,
    ]


# The remote store


async def test_remote_documents_go_too(house, tmp_path):
    reverted, forgotten = a_session(), a_session()
    async with another_gateway(tmp_path) as remem:
        for session in (reverted, forgotten):
            await house.remembers(session, WORD)
            await remem.store(call_document(session, SUMMARY, None))
        call = await CallsTable(house.store).find(reverted.id)
        assert (await house.eraser(remem).revert(call)).deleted["remote documents"] == 1
        assert [document.source_id for document in await remem.past_calls("maya", CALLER, 5)] == [forgotten.id]
        undone = await house.eraser(remem).erase(await house.eraser().find(CALLER))
        assert (undone.deleted["remote documents"], undone.remote_left) == (1, 0)
        assert await remem.past_calls("maya", CALLER, 5) == []


async def test_remote_store_that_deletes_nothing_is_told_of(house):
    session = a_session()
    await house.remembers(session, WORD)
    async with FakeRemem() as fake, httpx.AsyncClient() as http:
        remem = RememClient(fake.url, Secret(fake.api_key), http)
        await remem.store(call_document(session, SUMMARY, None))
        undone = await house.eraser(remem).erase(await house.eraser().find(CALLER))
    assert (undone.deleted["remote documents"], undone.remote_left) == (0, 1)


async def test_nothing_is_deleted_while_the_remote_store_is_away(house):
    await house.remembers(a_session(), WORD)
    traces = await house.eraser().find(CALLER)
    async with httpx.AsyncClient() as http:
        with pytest.raises(StoreUnavailable):
            await house.eraser(RememClient("http://127.0.0.1:1", Secret(""), http)).erase(traces)
    assert await house.eraser().find(CALLER) == traces


async def test_recording_deleted_by_another_erasure_is_passed_over(house):
    """Two callers are forgotten at once: each reads the recordings that the other deletes."""
    await house.remembers(a_session(), WORD)
    (house.places.record_dir / "gone.jsonl").symlink_to("deleted")  # listed, and not there when it is opened
    await house.eraser().erase(await house.eraser().find(CALLER))
    assert await house.holding(WORD) == []


async def test_caller_without_calls_is_erased_too(house):
    """What an operator has set, and what the audit log says about it."""
    pin_codes, audit = PinCodeStore(house.store, NoSharedStore()), AuditLog(house.store, KEY)
    await pin_codes.set("maya", CALLER, "4711")
    await pin_codes.check("maya", CALLER, "1234")
    token, _ = await TokenTable(house.store).create(TokenScope.MCP, agent="maya", caller=CALLER)
    for action in (AuditAction.PIN_SET, AuditAction.TOKEN_CREATE):
        await audit.write(AuditNote(action, "cli:ada", agent="maya", caller=CALLER, item=token.id))
    eraser = house.eraser()
    found = await eraser.find(CALLER)
    assert found and not found.sessions
    assert not await eraser.find(CALLER, "otto")
    undone = await eraser.erase(found)
    assert (undone.deleted["PIN codes"], undone.deleted["API tokens"]) == (1, 1)
    assert await house.holding(CALLER) == []
    assert not await eraser.find(CALLER)
    assert len(await audit.page(AuditFilter(caller_hash=audit.hash_of(CALLER)), limit=9)) == 2


# Callers under other identifiers

CUSTOMER = "sip_header:x-customer-id:K-1788"  # no part of it can be one of a random id, ignoring case


async def test_erasure_by_number_finds_identifiers(house):
    """Also what the customer left from another phone, but nothing of others."""
    await house.remembers(a_session(caller=CUSTOMER, number=CALLER), WORD)
    await house.remembers(a_session(caller=CUSTOMER, number="+12025550166"), WORD)
    await house.remembers(a_session(caller=OTHER, number=""), OTHER_WORD)
    eraser = house.eraser()
    found = await eraser.find_all(CALLER)
    assert [data.caller for data in found] == [CALLER, CUSTOMER]
    undone = await eraser.erase_all(found)
    assert undone.deleted["calls"] == 2 and undone.is_complete
    for word in (WORD, CALLER, "K-1788", "+12025550166"):
        assert await house.holding(word) == []
    assert (await house.tells(OTHER))[0] == [f"Likes {OTHER_WORD}"]
    assert [data.caller for data in await eraser.find_all(CALLER)] == [CALLER]


async def test_erasure_by_number_keeps_to_the_agent(house):
    await house.remembers(a_session(caller=CUSTOMER, number=CALLER, agent="otto"), WORD)
    assert [data.caller for data in await house.eraser().find_all(CALLER, "maya")] == [CALLER]
    assert [data.caller for data in await house.eraser().find_all(CALLER, "otto")] == [CALLER, CUSTOMER]


async def test_caller_who_asks_aloud_erases_no_one_else(house):
    """On a shared number the other identifiers are other people."""
    await house.remembers(a_session(caller=CUSTOMER, number=CALLER), OTHER_WORD)
    await house.remembers(a_session(), WORD)
    await house.eraser().erase_caller("maya", CALLER)
    assert (await house.tells(CALLER))[0] == []
    assert (await house.tells(CUSTOMER))[0] == [f"Likes {OTHER_WORD}"]


# Encrypted recordings


async def test_encrypted_recording_of_a_wordless_call_is_erased(house):
    key = Secret(Fernet.generate_key().decode())
    house.places = replace(house.places, recordings=RecordingCipher(key))
    house.records("one", CALLER, "maya", WORD)
    house.records("two", OTHER, "maya", OTHER_WORD)
    for path in house.places.record_dir.iterdir():
        path.write_bytes(house.places.recordings.seal(path.read_bytes() + b"\n"))
    assert await house.holding(WORD) == [str(house.places.record_dir.resolve() / "one.jsonl")]
    result = await house.eraser().erase(await house.eraser().find(CALLER))
    assert result.is_complete and result.deleted["files"] == 1
    assert [path.name for path in house.places.record_dir.iterdir()] == ["two.jsonl"]


async def test_erasure_without_the_key_is_incomplete(house):
    await house.remembers(session := a_session(), WORD)
    for name in (session.uuid, "wordless"):
        token = Fernet(Fernet.generate_key()).encrypt(b"{}\n")
        (house.places.record_dir / f"{name}.jsonl").write_bytes(token + b"\n")
    result = await house.eraser().erase(await house.eraser().find(CALLER))
    assert (result.unreadable, result.is_complete) == (1, False)
    assert [path.name for path in house.places.record_dir.iterdir()] == ["wordless.jsonl"]
    with pytest.raises(StoreUnavailable, match="wordless.jsonl is encrypted; set RECORD_KEY"):
        await house.holding(WORD)
