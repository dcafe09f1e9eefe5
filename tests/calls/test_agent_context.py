import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from gateway.agents import Agent
from gateway.calls.agent_context import NO_NOTES, AgentContext
from gateway.engines.interface import AgentFunction, HistoryMessage
from gateway.memory.access import AccessChange, MemoryAccess
from gateway.memory.facts import Fact
from gateway.memory.loader import MemoryLoader
from gateway.memory.pinned_topics import PinnedTopic
from gateway.memory.summary_parser import PastCall
from gateway.session import TrustLevel, VoiceSession
from tests.fakes.call_parts import FakeMemory, make_transcript

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


def make_context(stores=None, *, prompt="Caller: {{caller}}\n{{memory}}", caller=CALLER, transcript=None):
    session = VoiceSession("maya", caller, "twilio")
    agent = Agent("maya", prompt, greeting="Hi, Maya here.", timezone=None)
    access = MemoryAccess(caller=caller)
    if stores:
        access.memory = MemoryLoader(stores, agent="maya", caller=caller, limit=3)
    return AgentContext(session, agent, transcript or make_transcript(), access, [FUNCTION], {}, None)


async def test_settings_carry_the_agent():
    agent_settings = await make_context(prompt="You are Maya.").load_settings(LONG)
    assert (agent_settings.agent.name, agent_settings.prompt, agent_settings.greeting) == (
        "maya",
        "You are Maya.",
        "Hi, Maya here.",
    )
    assert (agent_settings.functions, agent_settings.history) == ([FUNCTION], [])


async def test_nothing_remembered_is_said_so():
    agent_settings = await make_context().load_settings(LONG)
    assert agent_settings.prompt == f"Caller: {CALLER}\n{NO_NOTES}"


async def test_withheld_number_is_unknown():
    agent_settings = await make_context(caller="").load_settings(LONG)
    assert agent_settings.prompt == f"Caller: an unknown caller\n{NO_NOTES}"


async def test_notes_and_name_are_in_the_prompt():
    stores = TwoStores(CHAIN)
    stores.remote.set_result([])
    agent_context = make_context(stores)
    agent_settings = await agent_context.load_settings(LONG)
    assert agent_settings.prompt.startswith(f"Caller: Ana ({CALLER})\nNotes about earlier calls")
    assert "Context for this call: Ana waits for a chain." in agent_settings.prompt
    assert (agent_context.recorded_memory["calls"], agent_context.late_memory()) == ([CHAIN], "")


async def test_names_in_notes_are_keyterms():
    stores = TwoStores(CHAIN, past_call("2", "She bought it at Rohloff."))
    stores.remote.set_result([])
    agent_context = make_context(stores)
    assert (await agent_context.load_settings(LONG)).keyterms == ["Ana", "Rohloff"]
    agent_context.memory_changed(AccessChange.REVOKED)
    assert agent_context.settings().keyterms == []


async def test_late_notes_are_sent_once():
    stores = TwoStores(CHAIN)
    agent_context = make_context(stores)
    await agent_context.load_settings(0.01)
    stores.remote.set_result([BELL])
    await agent_context.load_rest()
    later = agent_context.late_memory()
    assert "The bell is too quiet." in later
    assert "Ana waits for a chain." not in later
    assert agent_context.late_memory() == ""


async def test_next_session_gets_everything():
    stores = TwoStores(CHAIN)
    agent_context = make_context(stores)
    await agent_context.load_settings(0.01)
    stores.remote.set_result([BELL])
    await agent_context.load_rest()
    agent_settings = await agent_context.load_settings(0)
    assert "Ana waits for a chain." in agent_settings.prompt
    assert "The bell is too quiet." in agent_settings.prompt
    assert agent_context.late_memory() == ""


async def test_next_session_gets_the_newest_first():
    stores = TwoStores(past_call("1", "The older call.", days_ago=4))
    agent_context = make_context(stores)
    await agent_context.load_settings(0.01)
    stores.remote.set_result([past_call("2", "The newer call.")])
    await agent_context.load_rest()
    prompt = (await agent_context.load_settings(0)).prompt
    assert 0 < prompt.index("The newer call.") < prompt.index("The older call.")


@pytest.mark.parametrize("prompt", ["You are Maya.", "You are {{caller}}'s Maya."])
async def test_prompt_without_a_place_gets_no_memory(prompt):
    stores = TwoStores(CHAIN)
    stores.remote.set_result([BELL])
    agent_context = make_context(stores, prompt=prompt)
    agent_settings = await agent_context.load_settings(LONG)
    await agent_context.load_rest()
    assert "chain" not in agent_settings.prompt
    assert agent_context.late_memory() == ""


async def test_call_that_goes_on_has_history_and_no_greeting():
    transcript = make_transcript()
    transcript.agent_said("Hi, Maya here.", START)
    transcript.caller_said("A chain, please.", START)
    transcript.agent_said("Of course.", START)
    agent_settings = await make_context(transcript=transcript).load_settings(0)
    assert agent_settings.greeting == ""
    assert agent_settings.history == [
        HistoryMessage("assistant", "Hi, Maya here."),
        HistoryMessage("user", "A chain, please."),
        HistoryMessage("assistant", "Of course."),
    ]


async def test_placeholder_in_a_note_is_not_filled():
    stores = TwoStores(past_call("1", "Say {{caller}} twice."))
    stores.remote.set_result([])
    agent_settings = await make_context(stores, prompt="{{memory}}").load_settings(LONG)
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
    """Has a fact at once, and a topic when the test allows."""

    def __init__(self, *own):
        super().__init__(*own)
        self.remote.set_result([])
        self.answers = asyncio.Event()

    async def known_facts(self, agent, caller):
        return [LIKING]

    async def pinned_topics(self, agent, caller):
        await self.answers.wait()
        return [SALE]


async def test_topics_come_before_facts_and_calls():
    stores = KnowingStores(CHAIN)
    stores.answers.set()
    prompt = (await make_context(stores).load_settings(LONG)).prompt
    assert 0 < prompt.index("Orlando sale") < prompt.index("Likes tea") < prompt.index("Ana waits")


async def test_late_topic_is_sent_once_and_in_the_receipt():
    stores = KnowingStores(CHAIN)
    agent_context = make_context(stores)
    assert "Orlando" not in (await agent_context.load_settings(0.01)).prompt
    stores.answers.set()
    await agent_context.load_rest()
    await asyncio.sleep(0)
    assert "Orlando sale" in agent_context.late_memory() and agent_context.late_memory() == ""
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
    transcript = make_transcript()
    transcript.agent_audio(160, 0.0)
    agent_settings = await make_context(transcript=transcript).load_settings(LONG)
    assert (agent_settings.greeting, agent_settings.history) == ("", [])


class Patient:
    """Memory that notes how long it may take."""

    facts = topics = ()
    person = ""

    async def by(self, seconds):
        self.seconds = seconds
        return []


async def test_start_function_takes_of_the_time_for_memory():
    agent_context = make_context()
    agent_context._memory = memory = Patient()
    preparing = asyncio.create_task(asyncio.Event().wait())
    agent_context.wait_for(preparing)
    await agent_context.load_settings(0.01)
    assert memory.seconds <= 0
    preparing.cancel()


# Changes of access


def make_context_with(memory, level=TrustLevel.EVERYTHING):
    agent_context = make_context()
    access = agent_context._access
    access.level, access.memory = level, memory
    agent_context._memory = memory
    access.subscribe(agent_context.memory_changed)
    return agent_context, access


async def test_revoked_memory_leaves_the_prompt_and_stays_in_the_receipt():
    agent_context, access = make_context_with(FakeMemory("Ana", facts=[LIKING], calls=[CHAIN]))
    assert "Likes tea" in (await agent_context.load_settings(LONG)).prompt
    access.revoke()
    assert agent_context.settings().prompt.endswith(NO_NOTES)
    assert agent_context.late_memory() == ""
    assert [item["kind"] for item in agent_context.receipt["items"]] == ["fact", "call"]


async def test_other_caller_has_other_memory():
    agent_context, access = make_context_with(FakeMemory("Ana", facts=[LIKING]))
    await agent_context.load_settings(LONG)
    access.memory = FakeMemory(calls=[BELL])
    agent_context.memory_changed(AccessChange.CALLER_CHANGED)
    prompt = agent_context.settings().prompt
    assert "The bell is too quiet." in prompt and "Likes tea" not in prompt


async def test_facts_are_sent_when_the_level_rises():
    agent_context, access = make_context_with(FakeMemory("Ana", facts=[LIKING]), TrustLevel.NAME)
    prompt = (await agent_context.load_settings(LONG)).prompt
    assert "Ana" in prompt and "Likes tea" not in prompt
    assert agent_context.late_memory() == ""
    access.raise_level(TrustLevel.EVERYTHING)
    assert "Likes tea" in agent_context.late_memory()
