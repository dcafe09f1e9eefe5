"""Calls recorded by this version replay as recorded, with any kind of memory."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.replay import replay
from gateway.replay.recording import Recording, read
from gateway.settings import Secret
from gateway.simulate.softphone import phone_line
from tests.fakes.remem import FakeRemem, Request, Response
from tests.stage import ADMIN, CALLER, GREETING_SOUND, SOUND, Stage, make_carrier, staged

FIRST = ("My name is Ana, and I'm calling about the Orlando sale. We have an offer.", "That is good news.")


class HeldRemem(FakeRemem):
    """Answers when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.answers = asyncio.Event()
        self.answers.set()

    async def _respond(self, request: Request) -> Response | None:
        await self.answers.wait()
        return await super()._respond(request)


@contextlib.asynccontextmanager
async def recording_stage(folder: Path, carrier_name: str = "twilio", **options: Any) -> AsyncIterator[Stage]:
    async with staged(folder, make_carrier(carrier_name), RECORD_DIR=str(folder / "recordings"), **options) as stage:
        yield stage


async def one_call(stage: Stage, *turns: str) -> None:
    call, conversation = await stage.dial()
    await call.wait_heard(len(GREETING_SOUND))
    await stage.played(call, conversation)
    for said, answered in zip(turns[::2], turns[1::2], strict=True):
        await conversation.user_says(said)
        await stage.answer(call, conversation, answered)
    await call.hang_up()
    await stage.idle()


def recordings(folder: Path) -> list[Recording]:
    found = [read(path) for path in (folder / "recordings").glob("*.jsonl")]
    return sorted(found, key=lambda recording: recording.header.started_at)


async def differences(recording: Recording) -> list[str]:
    return [str(difference) for difference in await replay(recording)]


async def test_facts_and_topics_are_told_again(tmp_path: Path, carrier_name: str) -> None:
    async with recording_stage(tmp_path, carrier_name) as stage:
        await one_call(stage, *FIRST)
        await one_call(stage, "The Orlando sale needs the report of the roof. I prefer text messages.", "Noted.")
        await one_call(stage, "When is the inspection?", "On Monday.")
    *_, last = recordings(tmp_path)
    assert last.memory.facts and last.memory.pins
    assert await differences(last) == []


async def test_memory_that_came_late_comes_late_again(tmp_path: Path) -> None:
    async with HeldRemem() as remem:
        async with recording_stage(tmp_path / "here", REMEM_API_URL=remem.url, REMEM_API_KEY=remem.api_key) as stage:
            await one_call(stage, *FIRST)
        remem.answers.clear()
        remote = {"REMEM_API_URL": remem.url, "REMEM_API_KEY": remem.api_key}
        async with recording_stage(tmp_path / "there", hurries=True, **remote) as stage:
            call, conversation = await stage.dial()
            await call.wait_heard(len(GREETING_SOUND))
            await stage.played(call, conversation)
            remem.answers.set()
            await conversation.message("UpdatePrompt")
            await conversation.user_says("Hello again, I have a question.")
            await stage.answer(call, conversation, "Please go ahead.")
            await call.hang_up()
            await stage.idle()
    [recording] = recordings(tmp_path / "there")
    assert recording.memory.calls == ()
    assert await differences(recording) == []


@pytest.mark.parametrize("think", ["", 'think = "open_ai/gpt-5.4-mini"'])
async def test_agent_with_its_own_model_replays(tmp_path: Path, think: str) -> None:
    (tmp_path / "gateway.toml").write_text(f'[agents.maya]\nbrain = "script"\n{think}\n')
    async with recording_stage(tmp_path) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await conversation.user_says("Do you remember me?")
        await stage.played(call, conversation)
        await call.hang_up()
        await stage.idle()
    [recording] = recordings(tmp_path)
    assert await differences(recording) == []


async def test_call_from_the_own_phone_replays(tmp_path: Path) -> None:
    async with recording_stage(tmp_path) as stage:
        async with phone_line(stage.url, Secret(ADMIN), caller=CALLER) as line:
            frames = iter([SOUND] * 60)
            talking = asyncio.create_task(line.talk(lambda: next(frames, None), bytearray().extend, speed=10))
            conversation = await stage.engine.next_conversation()
            await conversation.configured()
            await conversation.user_says("My name is Ana.")
            await talking
        await stage.idle()
    [recording] = recordings(tmp_path)
    assert recording.header.carrier == "softphone"
    assert await differences(recording) == []


async def test_functions_of_a_file_are_not_compared(tmp_path: Path) -> None:
    (tmp_path / "functions.py").write_text("def order_status() -> str:\n    return 'ready'\n")
    (tmp_path / "gateway.toml").write_text('[agents.maya]\nfunctions = "functions.py"\n')
    async with recording_stage(tmp_path) as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await conversation.user_says("Is my bike ready?")
        assert await conversation.call_functions(["order_status"]) == ["ready"]
        await stage.answer(call, conversation, "It is ready.")
        conversation.abort()
        again = await stage.engine.next_conversation()
        await again.configured()
        await stage.played(call, again)
        await call.hang_up()
        await stage.idle()
    [recording] = recordings(tmp_path)
    assert await differences(recording) == []
