import asyncio
import contextlib
import re
import sqlite3
from pathlib import Path

import pytest

from gateway.calls.monitoring import LevelMeters
from gateway.cluster.store import NoSharedStore
from gateway.history.api_tokens import TokenTable
from gateway.history.call_log import CallLog, Cursor
from gateway.history.live_events import EVENTS, EventPublisher
from gateway.history.stores import open_local_store
from gateway.session import VoiceSession
from gateway.settings import Secret
from gateway.web.auth import Authenticator
from gateway.web.sessions import LiveEventsEndpoint, LiveTimeouts
from tests.live import PATH, watching
from tests.stage import (
    CALLED,
    CALLER,
    GREETING_SOUND,
    SOUND,
    Stage,
    make_carrier,
    patient_client,
    staged,
    until,
    until_it,
)

HTTP_API = (Path(__file__).parents[2] / "docs" / "http-api.md").read_text(encoding="utf-8")


async def test_call_is_told_as_it_happens(stage: Stage, carrier_name: str) -> None:
    async with watching(stage.url) as watcher:
        call, conversation = await stage.dial()
        await conversation.user_says("Is my bike ready?")
        await stage.answer(call, conversation, "It is.")
        await call.hang_up()
        await watcher.sees("finished")
    told = watcher.events
    assert len({event["session"] for event in told}) == 1
    assert {(event["caller"], event["agent"], event["carrier"]) for event in told} == {(CALLER, "maya", carrier_name)}
    assert watcher.kinds[:3] == ["ringing", "answered", "memory"]
    assert told[0]["called"] == CALLED
    [memory] = watcher.of("memory")
    assert (memory["facts"], memory["calls"], memory["outcome"]) == (0, 0, "nothing")
    assert memory["seconds"] >= 0
    spoken = [(turn["speaker"], turn["text"]) for turn in watcher.of("turn")]
    assert spoken[-2:] == [("caller", "Is my bike ready?"), ("agent", "It is.")]
    answer = watcher.of("turn")[-1]
    assert answer["latency"] == answer["stages"]["first_frame"]
    assert watcher.of("hangup")[0]["reason"] == "caller hung up"
    steps = {event["step"] for event in watcher.of("step") if event["state"] == "done"}
    assert {"archive", "document", "facts", "call list"} <= steps
    assert watcher.of("summary")[0]["by"] == "extractive"
    assert watcher.kinds[-1] == "finished"


async def test_interruption_tells_what_was_not_heard(held_stage: Stage) -> None:
    async with watching(held_stage.url) as watcher:
        call, conversation = await held_stage.dial()
        await call.wait_queued(len(GREETING_SOUND))
        call.play()
        await held_stage.played(call, conversation)
        await conversation.user_says("When can I come?")
        await conversation.agent_says("You can come on Monday.", audio=b"\x11" * 8000)
        await call.wait_queued(8000)
        await conversation.barge_in(late_text="", late_audio=[])
        interruption = await watcher.sees("interruption")
    assert interruption["unheard"].endswith("Monday.")
    assert watcher.of("turn")[-1]["text"] == "You can come on Monday."


async def test_refused_call_is_told(tmp_path: Path) -> None:
    async with staged(tmp_path, make_carrier("twilio"), ALLOWED_CALLERS="+12025550199") as stage:
        async with watching(stage.url) as watcher:
            await stage.carrier.dial(CALLER)
            refused = await watcher.sees("refused")
    assert refused["reason"] == "caller is not in ALLOWED_CALLERS"


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic x"}, {"X-API-Key": ""}]
)
async def test_nobody_watches_without_the_token(stage: Stage, headers: dict[str, str]) -> None:
    async with patient_client(stage.url, headers=headers) as http:
        answer = await http.get(PATH, params={"token": "admin-token-of-the-tests"})
    assert answer.status_code == 401
    assert answer.json() == {"detail": "missing or wrong token"}


async def test_streams_show_only_what_was_asked_for(stage: Stage) -> None:
    async with watching(stage.url, caller="+12025550144") as other, watching(stage.url, event="hangup") as ends:
        first, _ = await stage.dial()
        await first.hang_up()
        second, _ = await stage.dial("+12025550144")
        await second.hang_up()
        await ends.sees("hangup", 2)
        await other.sees("hangup")
    assert {event["caller"] for event in other.events} == {"+12025550144"}
    assert set(ends.kinds) == {"hangup"}
    session = ends.events[0]["session"]
    async with watching(stage.url, since="0-0", session=session[14:22]) as one:
        await one.sees("hangup")
    assert {event["session"] for event in one.events} == {session}


async def test_reader_goes_on_after_a_restart(tmp_path: Path) -> None:
    """Events that the reader missed, also before the restart, come first; none comes twice."""
    carrier = make_carrier("telnyx")
    async with staged(tmp_path, carrier) as stage:
        async with watching(stage.url) as before:
            call, conversation = await stage.dial()
            await before.sees("memory")
        await conversation.user_says("One.")
        await call.hang_up()
        await stage.idle()
    async with staged(tmp_path, make_carrier("telnyx")) as stage:
        async with watching(stage.url, since=before.place) as after:
            await after.sees("finished")
            again, _ = await stage.dial()
            await after.sees("memory")
            await again.hang_up()
            await after.sees("hangup", 2)
    places = [event["id"] for event in before.events + after.events]
    assert len(set(places)) == len(places)
    assert [Cursor.parse(place) for place in places] == sorted(Cursor.parse(place) for place in places)
    assert "One." in [turn["text"] for turn in after.of("turn")]
    assert "ringing" in before.kinds
    assert after.kinds.count("ringing") == 1


async def test_since_takes_a_moment(stage: Stage) -> None:
    call, _ = await stage.dial()
    await call.hang_up()
    await stage.idle()
    async with watching(stage.url, since="2026-01-01T00:00:00+00:00") as watcher:
        await watcher.sees("hangup")
    for wrong in ("yesterday", "2026-99-99T00:00"):
        answer = await stage.http.get(PATH, headers={"Last-Event-ID": wrong})
        assert answer.status_code == 422


async def test_nameless_words_are_shown_and_not_kept(tmp_path: Path) -> None:
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        async with watching(stage.url) as watcher:
            call, conversation = await stage.dial("")
            await conversation.user_says("Nobody may know.")
            await watcher.hears("Nobody may know.")
            await call.hang_up()
            await watcher.sees("hangup")
    with contextlib.closing(sqlite3.connect(tmp_path / "data" / "call-log.db")) as connection:
        stored = connection.execute("SELECT group_concat(entry) FROM entries").fetchone()[0]
    assert "ringing" in stored
    assert "Nobody may know" not in stored


async def test_kept_words_lose_their_secrets_with_the_call(stage: Stage) -> None:
    async with watching(stage.url) as watcher:
        call, conversation = await stage.dial()
        await conversation.user_says("My card is 4111 1111")
        await conversation.user_says("1111 1111.")
        await watcher.hears("1111 1111.")
        await call.hang_up()
        await watcher.sees("finished")
    async with watching(stage.url, since="0-0") as later:
        await later.sees("finished")
    said = [turn["text"] for turn in later.of("turn") if turn["speaker"] == "caller"]
    assert said == ["My card is [card number removed]", "[card number removed]."]


async def test_words_never_reach_the_log(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")
    async with watching(stage.url) as watcher:
        call, conversation = await stage.dial()
        await conversation.user_says("Xylophone.")
        await watcher.hears("Xylophone.")
        await call.hang_up()
        await watcher.sees("finished")
    assert "Xylophone" not in caplog.text


async def test_open_stream_ends_with_the_server(tmp_path: Path) -> None:
    async with contextlib.AsyncExitStack() as stack:
        stage = await stack.enter_async_context(staged(tmp_path, make_carrier("twilio")))
        async with watching(stage.url) as watcher:
            async with asyncio.timeout(60):
                await stack.aclose()
            await until(lambda: watcher.ended)


async def test_slow_reader_is_disconnected(tmp_path: Path) -> None:
    """A reader that accepts no data is disconnected."""
    store = await open_local_store(tmp_path)
    auth = Authenticator(Secret("t"), None, TokenTable(store))
    log = CallLog(tmp_path / "call-log.db")
    call_events = EventPublisher(log)
    sent: list[bytes] = []

    async def send(message: dict[str, object]) -> None:
        body = message.get("body", b"")
        if isinstance(body, bytes) and b"data:" in body:
            await asyncio.sleep(3600)
        sent.append(bytes(body) if isinstance(body, bytes) else b"")

    async def receive() -> dict[str, object]:
        await asyncio.sleep(3600)
        return {}

    headers = [(b"authorization", b"Bearer t")]
    scope = {"type": "http", "method": "GET", "headers": headers, "query_string": b"since=0-0"}
    call_events.of(VoiceSession("maya", CALLER, "twilio")).publish("ringing", called=CALLED)
    async with asyncio.timeout(60):
        await LiveEventsEndpoint(
            call_events, LevelMeters(NoSharedStore(), node="", nodes=list), auth, LiveTimeouts(slow_reader=0.05)
        )(scope, receive, send)
    assert not any(b"data:" in body for body in sent)
    log.close()
    await store.close()


async def test_levels_are_shown_while_somebody_watches(stage: Stage) -> None:
    call, conversation = await stage.dial()
    async with watching(stage.url, levels="1") as watcher:

        async def caller_is_loud() -> bool:
            await call.speak(SOUND)
            shown = [level for event in watcher.of("levels") for level in event["levels"]]
            return any(level["caller"] > 0.5 for level in shown)

        await until_it(caller_is_loud)
        await conversation.agent_says("Loud and clear.", audio=SOUND * 100)
        await until(lambda: any(level["agent"] > 0.5 for event in watcher.of("levels") for level in event["levels"]))
    assert all("id" not in event for event in watcher.of("levels"))


def test_every_event_is_documented() -> None:
    """The table in the docs, the list in the code, and the published events are the same."""
    section = HTTP_API.partition("\n## Live events\n")[2].partition("\n| event |")[2]
    assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == list(EVENTS)
    root = Path(__file__).parents[2] / "gateway"
    published = {"turn", "model_finished"}  # written by CallEvents itself
    for path in root.rglob("*.py"):
        published |= set(re.findall(r'\.publish\(\s*"(\w+)"', path.read_text()))
    assert published == set(EVENTS)
