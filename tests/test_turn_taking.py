"""Whole calls with Deepgram in which caller and agent speak at the same time, or the caller dictates."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.deepgram import Conversation
from tests.fakes.deepgram_speech import speech
from tests.stage import Stage, make_carrier, staged


@asynccontextmanager
async def stage_with(folder: Path, carrier_name: str, *lines: str, hold_playback: bool = False) -> AsyncIterator[Stage]:
    """A gateway whose agent has these lines in gateway.toml."""
    (folder / "gateway.toml").write_text("\n".join(["[agents.maya]", *lines]))
    async with staged(folder, make_carrier(carrier_name, hold_playback=hold_playback)) as stage:
        yield stage


STORY = b"\x11" * 8000
HEARD = "AGENT: Hi.\nCALLER: Tell me everything.\n"


@asynccontextmanager
async def telling(folder: Path, carrier_name: str, interrupt: str) -> AsyncIterator[tuple[Stage, Any, Conversation]]:
    """The phone has played 0.4 s of a second of the agent's answer, all of which the engine has sent."""
    lines = ('greeting = "Hi."', f'interrupt = "{interrupt}"', "silence = false")
    async with stage_with(folder, carrier_name, *lines, hold_playback=True) as stage:
        call, conversation = await stage.dial()
        await call.wait_queued(len(speech("Hi.")))
        call.play()
        await stage.played(call, conversation)
        await conversation.user_says("Tell me everything.")
        await call.until(lambda: call.clears == 1)
        await conversation.agent_says("It is a long story of two bicycles.", audio=STORY, sizes=(3200,))
        await call.wait_queued(len(STORY))
        await call.until(lambda: call.sent_frames[-1]["event"] == "mark")
        marks = len(call.marks_echoed)
        call.play(3200)
        await call.until(lambda: len(call.marks_echoed) > marks)
        yield stage, call, conversation


@pytest.mark.parametrize("interrupt", ["words", "never"])
async def test_backchannel_leaves_the_agent_speaking(tmp_path: Path, carrier_name: str, interrupt: str) -> None:
    async with telling(tmp_path, carrier_name, interrupt) as (stage, call, conversation):
        await conversation.user_says("Right, I see.")
        await conversation.agent_says("Shall I go on?", audio=b"\x33" * 800)  # the engine answers it
        await conversation.user_says("And then?")
        await conversation.agent_says("They met.", audio=b"\x44" * 800)
        await call.wait_queued(800 if interrupt == "words" else len(STORY) - 3200 + 800)
        call.play()
        await stage.played(call, conversation)
        await call.hang_up()
        assert b"\x33" * 100 not in call.heard
        story = "It is a long story of two bicycles."
        cut = "It is a long —" if interrupt == "words" else story
        assert await stage.archive() == (
            f"{HEARD}AGENT: {cut}\nCALLER: Right, I see.\nCALLER: And then?\nAGENT: They met.\n"
        )
        assert call.clears == (2 if interrupt == "words" else 1)


async def test_words_cut_off_the_agent(tmp_path: Path, carrier_name: str) -> None:
    async with telling(tmp_path, carrier_name, "words") as (stage, call, conversation):
        await conversation.barge_in()
        await conversation.end_turn("Make it short.")
        await call.until(lambda: call.clears == 2)
        await conversation.agent_says("They met.", audio=b"\x44" * 800)
        await call.wait_queued(800)
        call.play()
        await stage.played(call, conversation)
        await call.hang_up()
        assert call.dropped.startswith(STORY[3200:])
        archive = await stage.archive()
        assert archive.startswith(f"{HEARD}AGENT: It is a long —\nCALLER: Make it short.\nAGENT: They met.")


async def test_number_is_not_cut_in_the_middle(tmp_path: Path, carrier_name: str) -> None:
    async with stage_with(tmp_path, carrier_name, 'greeting = "What is your customer number?"') as stage:
        call, conversation = await stage.dial()
        patient = await conversation.message("UpdateListen")
        await conversation.user_says("four seven one one")
        await stage.answer(call, conversation, "Thank you, I have found it.")
        await conversation.until(lambda: len(conversation.received("UpdateListen")) == 2)
        listens = [patient, conversation.received("UpdateListen")[1]]
        thresholds = [update["listen"]["provider"]["eot_threshold"] for update in listens]
        assert thresholds == [0.9, 0.7]
        assert conversation.problems == []
