"""Each of these states what the code promises and fails today. Run: pytest -c pyproject.toml --rootdir . FILE"""

import asyncio
import json
import logging
import sqlite3
from datetime import timedelta

import httpx
import pytest

from gateway.calls.agents import AgentBook
from gateway.calls.endings import Ending
from gateway.calls.remembering import Remembering
from gateway.calls.session import Speaker, Turn
from gateway.calls.call_document import call_document
from gateway.errors import CarrierRefused, LlmUnavailable, SettingsError
from gateway.links.carrier_rest import TelnyxControl
from gateway.links.recorder import RecordingRoom
from gateway.logs import set_up
from gateway.settings import Secret, Settings, load
from gateway.web.admin_token import admin_token
from gateway.memory.recall import Recall
from tests.calls.aftermath import START, SUMMARY, MoodyModel, a_session, aftermath_in
from tests.fakes.remem import FakeRemem, Fault
from tests.fakes.telnyx import FakeTelnyx
from tests.stage import until


@pytest.fixture
async def after(tmp_path):
    async with aftermath_in(tmp_path) as after:
        yield after


@pytest.fixture
async def remem(after):
    async with FakeRemem() as remem:
        after.sends_to(remem)
        yield remem


async def test_lost_answer_of_a_store_without_ids(after, remem):
    """ending_steps._create_remote: `""` (found, no id) is taken for None (not found) -> second document."""
    remem.face = remem.shape = "plan"
    remem.honours_idempotency = False
    remem.fails(Fault.ANSWER_LOST)
    await after.finishes(session := a_session())
    assert remem.documents_of(session.id) == 1


async def test_turned_away_repeat_still_asks_first(after, remem):
    """ending_steps._create_remote: a 429 on the repeat forgets that an earlier answer was lost -> second document."""
    remem.face, remem.honours_idempotency, remem.indexing_delay = "plan", False, 3600
    remem.fails(Fault.ANSWER_LOST, Fault.NONE, Fault.TOO_MANY_REQUESTS)

    def indexed():
        for stored in remem.documents.values():
            stored.visible_at = 0

    after.pauses.events.extend([int, indexed])
    await after.finishes(session := a_session())
    assert remem.documents_of(session.id) == 1


async def test_finished_ending_keeps_no_words(after):
    """endings: the raw, unredacted transcript stays in gateway.db for ever."""
    await after.finishes(a_session())
    connection = sqlite3.connect(after.folder / "gateway.db")
    kept = connection.execute("SELECT session FROM endings").fetchall()
    connection.close()
    assert not any("chain" in row[0] for row in kept)


async def test_document_deleted_before_the_upgrade(after):
    model = MoodyModel(LlmUnavailable("down"))
    after.asks(model)
    finalizer = after.finalizer()
    finalizer.submit(a_session())
    await until(lambda: len(after.pauses.lengths) > 2)
    (document,) = await after.documents()
    await after.store.delete(document.id)
    model.recovers()
    await until(lambda: not finalizer.unfinished)
    assert await after.open_endings() == []


async def test_better_summary_is_sent_while_the_archive_waits(after, remem):
    model = MoodyModel(LlmUnavailable("down"))
    after.asks(model)
    after.archive_dir.write_text("")
    finalizer = after.finalizer()
    finalizer.submit(a_session())
    await until(lambda: remem.documents)
    model.recovers()
    try:
        await until(lambda: SUMMARY.context in next(iter(remem.documents.values())).content, timeout=2)
    finally:
        await finalizer.close(seconds=0)


async def test_one_unreadable_ending_does_not_stop_the_others(after):
    await after.steps.endings.save(Ending(a_session()))
    connection = sqlite3.connect(after.folder / "gateway.db")
    connection.execute("UPDATE endings SET session = replace(session, 'caller hung up', 'newer reason')")
    connection.commit()
    connection.close()
    await after.finalizer().resume()


async def test_blank_turn_is_no_word(after):
    await after.finishes(a_session(turns=[Turn(Speaker.CALLER, " ", START)]))
    assert (await after.documents(), after.archives()) == ([], [])


def test_duration_is_never_negative():
    session = a_session(ended_at=START - timedelta(seconds=3))
    assert "**Duration:** 0m 0s" in call_document(session, SUMMARY, None).content


@pytest.mark.parametrize(
    "environ", [{"PUBLIC_URL": "https://[bad"}, {"DATA_DIR": "~nosuchuser/x"}, {"PORT": "9" * 5000}], ids=str
)
def test_settings_mistake_is_one_line(environ, tmp_path):
    with pytest.raises(SettingsError):
        load(environ, tmp_path)


def test_dotenv_that_is_not_text_is_one_line(tmp_path):
    (tmp_path / ".env").write_bytes(b"HOST=\xff")
    with pytest.raises(SettingsError):
        load({}, tmp_path)


def test_dotenv_is_taken_literally(tmp_path):
    (tmp_path / ".env").write_text("REMEM_API_KEY='a${HOME}b'\n")
    assert load({}, tmp_path).remem_api_key == Secret("a${HOME}b")


@pytest.mark.parametrize("text", ["host = { a = 1 }\n", "allowed_callers = [['+12025550101']]\n"])
def test_toml_table_is_no_text(text, tmp_path):
    (tmp_path / "gateway.toml").write_text(text)
    with pytest.raises(SettingsError):
        load({}, tmp_path)


def test_prompt_that_is_not_text_is_one_line(tmp_path):
    (tmp_path / "p.md").write_bytes(b"\xff")
    with pytest.raises(SettingsError):
        AgentBook({"maya": {"prompt": "p.md"}}, tmp_path)


@pytest.mark.parametrize(
    "table", [{"think": "/model"}, {"voice": ""}, {"listen": ""}, {"timezone": "x" * 300}, {"timezone": "America"}]
)
def test_half_an_agent_is_a_mistake(table, tmp_path):
    (tmp_path / "p.md").write_text("hi")
    with pytest.raises(SettingsError):
        AgentBook({"maya": {"prompt": "p.md", **table}}, tmp_path)


def test_admin_token_that_is_not_text_is_one_line(tmp_path):
    (tmp_path / "admin-token").write_bytes(b"\xff")
    with pytest.raises(SettingsError):
        admin_token(Settings(data_dir=tmp_path))


@pytest.mark.parametrize("value", ["a\nb", 'say "x" now'])
def test_text_field_stays_on_its_line(value, capsys):
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    set_up("text", "info")
    logging.getLogger("x").info("event", extra={"value": value})
    root.handlers[:] = handlers
    root.setLevel(level)
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.rstrip("\n").endswith("value=" + json.dumps(value))


@pytest.mark.parametrize("name", ["level", "event", "time"])
def test_json_field_does_not_hide_the_lines_own(name, capsys):
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    set_up("json", "info")
    logging.getLogger("x").info("phrase", extra={name: "other"})
    root.handlers[:] = handlers
    root.setLevel(level)
    line = json.loads(capsys.readouterr().err)
    assert (line["level"], line["event"]) == ("info", "phrase")
    assert line["time"] != "other"


def test_recorder_survives_a_bad_line(tmp_path):
    room = RecordingRoom(tmp_path / "calls")
    first, second = room.record("gone/one"), room.record("two")  # the first can't be opened: there is no such folder
    first.note("call", 1)
    second.note("call", 2)
    room.close()
    assert second.path.exists()


def test_record_dir_that_is_a_file_is_one_line(tmp_path):
    (tmp_path / "calls").write_text("")
    with pytest.raises(SettingsError):
        RecordingRoom(tmp_path / "calls")


async def test_cancel_in_the_same_breath_leaves_nothing_unawaited(after):
    memory = Remembering(Recall(after.store, None, 3), agent="maya", caller="+12025550143", limit=3)
    memory.cancel()
    await memory.rest()


async def test_answer_at_a_wrong_address_is_not_a_success():
    async with FakeTelnyx("http://127.0.0.1:9") as telnyx, httpx.AsyncClient(trust_env=False) as http:
        wrong = telnyx.api_url.removesuffix("/v2") + "/v3"
        control = TelnyxControl(http, api_url=wrong, api_key=Secret(telnyx.api_key))
        with pytest.raises(CarrierRefused):
            await control.answer("call-1", stream_url="ws://h/telnyx/media", command_key="k")


async def test_next_connection_hears_newest_first():
    """briefing: notes that came late stand last, though the text around them says `newest first`."""
    from datetime import UTC, datetime

    from gateway.calls.agents import Agent
    from gateway.calls.briefing import Briefing
    from gateway.calls.playback import Playback
    from gateway.calls.session import VoiceSession
    from gateway.calls.transcript import Transcript
    from gateway.memory.call_notes import PastCall

    def past(name, day):
        at = datetime(2026, 2, day, tzinfo=UTC)
        return PastCall(f"voice-session:{name}", at, "", "+12025550143", "maya", context=f"{name} call")

    class Stores:
        remote = asyncio.get_running_loop().create_future()

        async def own_calls(self, agent, caller):
            return [past("older", 1)]

        async def remote_calls(self, agent, caller):
            return await self.remote

    stores = Stores()
    memory = Remembering(stores, agent="maya", caller="+12025550143", limit=1)
    session, agent = VoiceSession("maya", "+12025550143", "twilio"), Agent("maya", "{{memory}}")
    briefing = Briefing(session, agent, Transcript(Playback()), memory, [])
    await briefing.brief(0.01)
    stores.remote.set_result([past("newer", 5)])
    await briefing.load_rest()
    prompt = (await briefing.brief(0)).prompt
    assert prompt.index("newer call") < prompt.index("older call")
