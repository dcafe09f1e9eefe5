"""The live page: a real call, watched and controlled by an operator."""

import asyncio
import contextlib
import re
import struct
from collections.abc import AsyncIterator

import httpx

from tests.live import Watcher
from tests.stage import ADMIN, CALLER, SOUND, Stage, make_carrier, patient_client, staged, until


@contextlib.asynccontextmanager
async def logged_in(stage: Stage) -> AsyncIterator[httpx.AsyncClient]:
    async with patient_client(stage.url) as http:
        await http.post("/login", data={"token": ADMIN})
        yield http


async def form_of(http: httpx.AsyncClient) -> dict[str, str]:
    page = (await http.get("/")).text
    [token, *_] = re.findall(r'name="form_token" value="([^"]*)"', page)
    [uuid, *_] = re.findall(r'data-session="([0-9a-f-]{36})"', page)
    return {"form_token": token, "uuid": uuid, "quietly": "1"}


async def test_page_shows_calls_and_what_was_said(stage: Stage):
    async with logged_in(stage) as http:
        assert "0 live calls" in (await http.get("/")).text
        call, conversation = await stage.dial()
        await conversation.user_says("Is my <b>bike</b> ready?")
        await until(lambda: conversation.heard is not None)
        page = (await http.get("/")).text
        assert "+1 202-555-0143" in page and "1 live call</span>" in page
        assert "Is my &lt;b&gt;bike&lt;/b&gt; ready?" in page
        await call.hang_up()


async def test_page_leads_to_what_is_known(stage: Stage):
    async with logged_in(stage) as http:
        for caller in (CALLER, CALLER, ""):
            call, conversation = await stage.dial(caller)
            await conversation.user_says("My name is Ana.")
            path = f"/live/{(await form_of(http))['uuid']}/caller"
            answer = await http.get(path)
            if caller:
                assert answer.headers["location"].startswith("/callers/")
            await call.hang_up()
            await stage.idle()
            assert (await http.get(path)).status_code == 404
        assert answer.status_code == 404  # the call is over
        [known] = re.findall(r'href="(/callers/[^"]+)"', (await http.get("/")).text)[:1]
        assert "+1 202-555-0143" in (await http.get(known)).text


async def test_events_come_by_cookie_alone(stage: Stage):
    async with patient_client(stage.url) as stranger:
        refused = await stranger.get("/live/events")
        assert (refused.status_code, refused.headers["x-frame-options"]) == (401, "DENY")
    async with logged_in(stage) as http, http.stream("GET", "/live/events") as answer:
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        watcher = Watcher()
        reading = asyncio.create_task(watcher.read(answer))
        await until(lambda: watcher.place)
        call, conversation = await stage.dial()
        await conversation.user_says("Is my bike ready?")
        assert (await watcher.hears("Is my bike ready?"))["caller"] == CALLER
        await call.hang_up()
        await watcher.sees("hangup")
        reading.cancel()


async def test_operator_has_the_agent_say_something(stage: Stage):
    async with logged_in(stage) as http:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        form = await form_of(http)
        answer = await http.post(f"/live/{form['uuid']}/say", data={**form, "words": "One moment,\n please."})
        assert answer.status_code == 204
        [spoken] = await until(lambda: conversation.received("InjectAgentMessage"))
        assert spoken["message"] == "One moment, please."
        assert (await http.post(f"/live/{form['uuid']}/say", data={**form, "words": " "})).status_code == 400
        await call.hang_up()


async def test_operator_ends_the_call(stage: Stage):
    async with logged_in(stage) as http:
        call, conversation = await stage.dial()
        await conversation.user_says("Is my bike ready?")
        form = await form_of(http)
        assert (await http.post(f"/live/{form['uuid']}/end", data=form)).status_code == 204
        await stage.idle()
        assert "operator hung up" in (await http.get(f"/calls/{form['uuid']}")).text
        assert (await http.post(f"/live/{form['uuid']}/end", data=form)).status_code == 404


async def test_without_a_script_the_page_comes_back(stage: Stage):
    async with logged_in(stage) as http:
        call, _ = await stage.dial()
        form = await form_of(http)
        answer = await http.post(f"/live/{form['uuid']}/end", data=form | {"quietly": ""})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        await stage.idle()


async def test_listening_in_is_off_by_default(stage: Stage):
    async with logged_in(stage) as http:
        call, _ = await stage.dial()
        form = await form_of(http)
        assert (await http.get(f"/live/{form['uuid']}/listen.wav")).status_code == 403
        assert "listen.wav" not in (await http.get("/")).text
        await call.hang_up()


async def test_listener_hears_the_caller(tmp_path):
    async with staged(tmp_path, make_carrier("twilio"), LISTEN_IN="true") as stage, logged_in(stage) as http:
        call, conversation = await stage.dial()
        uuid = (await form_of(http))["uuid"]
        async with http.stream("GET", f"/live/{uuid}/listen.wav") as answer:
            heard = bytearray()

            async def listen() -> None:
                async for chunk in answer.aiter_bytes():
                    heard.extend(chunk)

            listening = asyncio.create_task(listen())
            await until(lambda: len(heard) > 44)
            await call.speak(SOUND)
            await until(
                lambda: any(sample for (sample, _) in struct.iter_unpack("<hh", bytes(heard[44 : len(heard) // 4 * 4])))
            )
            await call.hang_up()
            await asyncio.wait_for(listening, 60)  # it ends with the call
        assert heard.startswith(b"RIFF")


async def test_call_page_is_drawn_from_what_was_told(stage: Stage):
    async with logged_in(stage) as http:
        call, conversation = await stage.dial()
        await conversation.user_says("Is my bike ready?")
        await stage.answer(call, conversation, "It is.")
        form = await form_of(http)
        await call.hang_up()
        await stage.idle()
        page = (await http.get(f"/calls/{form['uuid']}")).text
        assert 'class="timeline"' in page and "Is my bike ready?" in page
        assert re.search(r'class="chip[^"]*" title="[^"]*first frame sent', page)
