"""Calls and edits that put something on the dashboard's pages, for pictures and for checks of accessibility."""

import asyncio
import contextlib
import html
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx

from tests.fakes.deepgram import Conversation
from tests.stage import ADMIN, Stage, patient_client, until_it

PAUSE = 0.6

PREVIEW = """
const prompt = document.querySelector("[name=prompt]");
prompt.value = prompt.value.replace("a friendly assistant", "the voice of Harbour Street Bicycles");
prompt.form.engine.value = "deepgram";
prompt.form.querySelector("[name='tool:search_memory']").checked = false;
prompt.form.requestSubmit();
"""
CONFLICT = """
const prompt = document.querySelector("[name=prompt]");
prompt.value = prompt.value.replace("a friendly assistant", "the voice of Harbour Street Bicycles");
prompt.form.base.value = "000000000000";
prompt.form.querySelector("[formaction$=save]").click();
"""
"""Saves a page that was loaded before the files were changed."""
CREATE_TOKEN = """
const label = document.querySelector("[name=label]");
label.value = "Dashboards in Grafana, second floor";
label.form.requestSubmit();
"""


async def finished_call(stage: Stage) -> str:
    """One with a barge-in and an operator; the path of its page."""
    call, conversation = await stage.dial("+12025550117")
    await stage.played(call, conversation)
    await conversation.user_says("Hi, it's Tom. Is my cargo bike ready?")
    await stage.answer(call, conversation, "It is nearly done. The new tyre is on, and the chain is being cleaned.")
    await conversation.user_says("When can I have it?")
    await say(stage, "The workshop is open until seven today.")
    await stage.played(call, conversation)
    await conversation.user_says("Great, see you then.")
    await call.hang_up()

    async def newest() -> str:
        [newest, *_] = (await stage.http.get("/v1/sessions?limit=1")).json()
        return newest["session"] if newest["caller"] == "+12025550117" and newest["ending"] == "done" else ""

    return f"/calls/{(await until_it(newest)).removeprefix('voice-session:')}"


async def say(stage: Stage, words: str) -> None:
    """As an operator, in the only live call."""
    async with logged_in(stage) as (http, page, token):
        [action] = re.findall(r'action="(/live/[0-9a-f-]+/say)"', page)
        (await http.post(action, data={"form_token": token, "words": words})).raise_for_status()


async def edit_agent(stage: Stage) -> None:
    """So that there is history."""
    async with logged_in(stage) as (http, _, token):
        page = (await http.get("/agents/maya")).text
        texts = dict(re.findall(r'name="(base|voice)" value="([^"]*)"', page))
        [prompt] = re.findall(r'<textarea class="prompt"[^>]*>\n(.*?)</textarea>', page, re.DOTALL)
        texts["prompt"], texts["transfer_to"] = html.unescape(prompt), "workshop = +12025550177"
        texts["greeting"] = "Harbour Street Bicycles, this is Maya. How can I help you?"
        (await http.post("/agents/maya/save", data={"form_token": token, **texts})).raise_for_status()


@contextlib.asynccontextmanager
async def logged_in(stage: Stage) -> AsyncIterator[tuple[httpx.AsyncClient, str, str]]:
    """With the start page, and the token that forms need."""
    async with patient_client(stage.url, follow_redirects=True) as http:
        page = (await http.post("/login", data={"token": ADMIN})).text
        [token, *_] = re.findall(r'name="form_token" value="([^"]*)"', page)
        yield http, page, token


async def live_call(stage: Stage):
    call, conversation = await stage.dial("+12025550143")
    await stage.played(call, conversation)
    for question, answer in (
        (
            "Hi, it's Ana again. Are the brake pads for my road bike in yet?",
            "Hello Ana! They arrived this morning. Would Thursday at ten suit you?",
        ),
        (
            "Thursday works. How long will it take?",
            "About forty minutes. You can wait here, or we send you a text message.",
        ),
    ):
        await ask(stage, call, conversation, question)
        await stage.answer(call, conversation, answer)
    return call


async def second_live_call(stage: Stage):
    call, conversation = await stage.dial("+12025550199")
    await stage.played(call, conversation)
    await ask(stage, call, conversation, "Good morning, do you repair electric cargo bikes?")
    await stage.answer(call, conversation, "We do. What seems to be the problem with it?")
    return call


async def ask(stage: Stage, call: Any, conversation: Conversation, question: str) -> None:
    """As a person does on the phone, with a pause that engines take to be sure that it is the end."""
    await stage.spoken(call, conversation)
    await asyncio.sleep(PAUSE)
    await conversation.user_says(question)
