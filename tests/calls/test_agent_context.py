import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from gateway.agents import Agent
from gateway.calls.agent_context import NO_NOTES, AgentContext
from gateway.calls.playout import Playout
from gateway.calls.transcript import Transcript
from gateway.engines.interface import AgentFunction, HistoryMessage
from gateway.memory.facts import Fact
from gateway.memory.loader import MemoryLoader
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.summary_parser import PastCall
from gateway.session import VoiceSession

START = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
CALLER = "+12025550143"
FUNCTION = AgentFunction("hang_up", "Ends the call.")
LONG = 10.0


def past_call(name, context, *, caller_name="", days_ago=0):
    started_at = START - timedelta(days=days_ago)
    return PastCall(f"voice-session:{name}", started_at, caller_name, CALLER, "maya", context=context)


CHAIN = past_call("1", "Ana waits for a chain.", caller_name="Ana")
BELL = past_call("2", "The bell is too quiet.")


class TwoStores:
    """Our own store answers at once; the other when the test lets it."""

    def __init__(self, *own):
        self.own = list(own)
        self.remote = asyncio.get_running_loop().create_future()

    async def own_calls(self, agent, caller):
        return self.own

    async def remote_calls(self, agent, caller):
        return await self.remote

    async def known_facts(self, agent, caller):
        return []

    async def pinned_topics(self, agent, caller):
        return []


def a_briefing(stores=None, *, prompt="Caller: {{caller}}\n{{memory}}", caller=CALLER, transcript=None):
    session = VoiceSession("maya", caller, "twilio")
    agent = Agent("maya", prompt, greeting="Hi, Maya here.", timezone=None)
    memory = MemoryLoader(stores, agent="maya", caller=caller, limit=3) if stores else None
    return AgentContext(session, agent, transcript or Transcript(Playout()), memory, [FUNCTION])


async def test_brief_carries_the_agent():
    agent_settings = await a_briefing(prompt="You are Maya.").agent_settings(LONG)
    assert (agent_settings.agent.name, agent_settings.prompt, agent_settings.greeting) == (
        "maya",
        "You are Maya.",
        "Hi, Maya here.",
    )
    assert (agent_settings.functions, agent_settings.history) == ([FUNCTION], [])


async def test_nothing_remembered_is_said_so():
    agent_settings = await a_briefing().agent_settings(LONG)
    assert agent_settings.prompt == f"Caller: {CALLER}\n{NO_NOTES}"


async def test_nameless_caller_is_unknown():
    agent_settings = await a_briefing(caller="").agent_settings(LONG)
    assert agent_settings.prompt == f"Caller: an unknown caller\n{NO_NOTES}"


async def test_notes_and_name_are_in_the_prompt():
    stores = TwoStores(CHAIN)
    stores.remote.set_result([])
    agent_context = a_briefing(stores)
    agent_settings = await agent_context.agent_settings(LONG)
    assert agent_settings.prompt.startswith(f"Caller: Ana ({CALLER})\nNotes about earlier calls")
    assert "Context for this call: Ana waits for a chain." in agent_settings.prompt
    assert (agent_context.memory["calls"], agent_context.untold()) == ([CHAIN], "")


async def test_late_notes_are_told_once():
    stores = TwoStores(CHAIN)
    agent_context = a_briefing(stores)
    await agent_context.agent_settings(0.01)
    stores.remote.set_result([BELL])
    await agent_context.load_rest()
    later = agent_context.untold()
    assert "The bell is too quiet." in later
    assert "Ana waits for a chain." not in later
    assert agent_context.untold() == ""


async def test_next_connection_is_told_everything():
    stores = TwoStores(CHAIN)
    agent_context = a_briefing(stores)
    await agent_context.agent_settings(0.01)
    stores.remote.set_result([BELL])
    await agent_context.load_rest()
    agent_settings = await agent_context.agent_settings(0)
    assert "Ana waits for a chain." in agent_settings.prompt
    assert "The bell is too quiet." in agent_settings.prompt
    assert agent_context.untold() == ""


async def test_next_connection_is_told_the_newest_first():
    stores = TwoStores(past_call("1", "The older call.", days_ago=4))
    agent_context = a_briefing(stores)
    await agent_context.agent_settings(0.01)
    stores.remote.set_result([past_call("2", "The newer call.")])
    await agent_context.load_rest()
    prompt = (await agent_context.agent_settings(0)).prompt
    assert 0 < prompt.index("The newer call.") < prompt.index("The older call.")


@pytest.mark.parametrize("prompt", ["You are Maya.", "You are {{caller}}'s Maya."])
async def test_prompt_without_a_place_gets_no_memory(prompt):
    stores = TwoStores(CHAIN)
    stores.remote.set_result([BELL])
    agent_context = a_briefing(stores, prompt=prompt)
    agent_settings = await agent_context.agent_settings(LONG)
    await agent_context.load_rest()
    assert "chain" not in agent_settings.prompt
    assert (agent_context.memory["calls"], agent_context.untold()) == ([], "")


async def test_call_that_goes_on_has_history_and_no_greeting():
    transcript = Transcript(Playout())
    transcript.agent_said("Hi, Maya here.", START)
    transcript.caller_said("A chain, please.", START)
    transcript.agent_said("Of course.", START)
    agent_settings = await a_briefing(transcript=transcript).agent_settings(0)
    assert agent_settings.greeting == ""
    assert agent_settings.history == [
        HistoryMessage("assistant", "Hi, Maya here."),
        HistoryMessage("user", "A chain, please."),
        HistoryMessage("assistant", "Of course."),
    ]


async def test_placeholder_in_a_note_is_not_filled():
    stores = TwoStores(past_call("1", "Say {{caller}} twice."))
    stores.remote.set_result([])
    agent_settings = await a_briefing(stores, prompt="{{memory}}").agent_settings(LONG)
    assert CALLER not in agent_settings.prompt


# Pinned topics

SALE = PinnedTopic(
    "document",
    "Orlando sale",
    "",
    "There is an offer.",
    (),
    "open",
    (),
    2,
    "voice-session:1",
    (3,),
    START,
    START,
)
LIKING = Fact("fact", "Likes tea", "preference", 0.9, "voice-session:1", (1,), START, START)


class KnowingStores(TwoStores):
    """Knows a topic and a fact, too, from the moment it is told to."""

    def __init__(self, *own):
        super().__init__(*own)
        self.remote.set_result([])
        self.knows = asyncio.Event()

    async def known_facts(self, agent, caller):
        return [LIKING]

    async def pinned_topics(self, agent, caller):
        await self.knows.wait()
        return [SALE]


async def test_topics_come_before_facts_and_calls():
    stores = KnowingStores(CHAIN)
    stores.knows.set()
    prompt = (await a_briefing(stores).agent_settings(LONG)).prompt
    assert 0 < prompt.index("Orlando sale") < prompt.index("Likes tea") < prompt.index("Ana waits")


async def test_late_topic_is_told_once_and_in_the_receipt():
    stores = KnowingStores(CHAIN)
    agent_context = a_briefing(stores)
    assert "Orlando" not in (await agent_context.agent_settings(0.01)).prompt
    stores.knows.set()
    await agent_context.load_rest()
    await asyncio.sleep(0)
    assert "Orlando sale" in agent_context.untold() and agent_context.untold() == ""
    pinned, *_ = agent_context.receipt["items"]
    assert (pinned["kind"], pinned["id"], pinned["session"], pinned["turns"]) == (
        "pin",
        "document",
        "voice-session:1",
        [3],
    )
    assert pinned["tokens"] > 0 and agent_context.receipt["block"].startswith("Topics that run through")


async def test_greeting_that_has_begun_is_not_said_again():
    """Its sound may come before its text."""
    transcript = Transcript(Playout())
    transcript.agent_audio(160, 0.0)
    agent_settings = await a_briefing(transcript=transcript).agent_settings(LONG)
    assert (agent_settings.greeting, agent_settings.history) == ("", [])


class Patient:
    """Memory that notes how long it may take."""

    facts = pins = ()
    person = ""

    async def by(self, seconds):
        self.seconds = seconds
        return []


async def test_start_function_takes_of_the_time_for_memory():
    agent_context = a_briefing()
    agent_context._memory = memory = Patient()
    preparing = asyncio.create_task(asyncio.Event().wait())
    agent_context.waits_for(preparing)
    await agent_context.agent_settings(0.01)
    assert memory.seconds <= 0
    preparing.cancel()
