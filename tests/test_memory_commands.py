"""Memory commands in whole calls: both carriers, with the engine's language model and with the agent's own."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.history.audit_log import AuditFilter, AuditLog
from gateway.history.erasure import DataLocations, holding
from gateway.history.stores import open_local_store
from gateway.settings import Secret
from tests.fakes.deepgram import FakeDeepgram
from tests.fakes.llm import FakeLlm
from tests.redis_server import files_holding, running_redis
from tests.stage import ADMIN, Stage, make_carrier, staged, until, until_it

WRONG = "I am only a language model and can't do that. Is there anything else?"
KNOWN = "Here is what I know about you."
FORGET_ASKED = "Shall I forget what you told me just now?"
FRESH_ASKED = "Shall I forget everything I know about you, for good?"
FORGOTTEN = "All right, I have forgotten everything about you, and keep nothing of this call."

MANAGED = """
[agents.maya]
prompt = "maya.md"
"""
OWN_BRAIN = """
[agents.maya]
prompt = "maya.md"
brain = {{ url = "{url}/v1", model = "llama3.2", api_key_env = "LLAMA_KEY" }}
"""
UNTRUSTED = """
[agents.maya.memory.trust]
attested = "summaries"
unattested = "summaries"
"""


@pytest.fixture(params=["managed", "brain"])
def mind(request: pytest.FixtureRequest) -> str:
    """Whose language model answers; it says something wrong to every command."""
    kind: str = request.param
    return kind


@pytest.fixture
async def llm() -> AsyncIterator[FakeLlm]:
    async with FakeLlm() as made:
        made.answers(WRONG)
        yield made


@pytest.fixture
def manners() -> dict[str, Any]:
    return {}


@pytest.fixture
def more_settings() -> str:
    return ""


@pytest.fixture
async def stage(
    carrier_name: str, tmp_path: Path, llm: FakeLlm, mind: str, manners: dict[str, Any], more_settings: str
) -> AsyncIterator[Stage]:
    (tmp_path / "maya.md").write_text("You are Maya, talking to {{caller}}.\n{{memory}}")
    settings = (MANAGED if mind == "managed" else OWN_BRAIN.format(url=llm.url)) + more_settings
    (tmp_path / "gateway.toml").write_text(settings)
    engine = FakeDeepgram(managed_answer=WRONG, **manners)
    record_dir = str(tmp_path / "recordings")
    carrier = make_carrier(carrier_name)
    async with staged(tmp_path, carrier, engine=engine, LLAMA_KEY=llm.api_key, RECORD_DIR=record_dir) as made:
        yield made


async def _say(stage: Stage, call: Any, conversation: Any, *turns: str) -> None:
    """The caller says each, and hears the answer to the end."""
    for text in turns:
        marks = len(call.marks_echoed)
        await conversation.user_says(text)
        await _hears_more(call, marks)
        await conversation.until(lambda: not conversation.agent_speaking)
        await stage.played(call, conversation)


async def _hears_more(call: Any, marks: int) -> None:
    await call.until(lambda: len(call.marks_echoed) > marks)


async def _begin(stage: Stage) -> tuple[Any, Any]:
    call, conversation = await stage.dial()
    await stage.played(call, conversation)
    return call, conversation


async def _call(stage: Stage, *turns: str) -> Any:
    """One whole call; the engine's end of it."""
    call, conversation = await _begin(stage)
    await _say(stage, call, conversation, *turns)
    await call.hang_up()
    await stage.idle()
    return conversation


def _agent(archive: str) -> list[str]:
    return [line.removeprefix("AGENT: ") for line in archive.splitlines() if line.startswith("AGENT: ")]


def _places(folder: Path) -> DataLocations:
    return DataLocations(folder / "data", folder / "archive", folder / "recordings")


async def test_known_facts_are_listed(stage: Stage) -> None:
    await _call(stage, "My name is Ana Lopez.", "I prefer to be called in the morning.")
    await _call(stage, "What do you know about me?")
    [listed] = [line for line in _agent(stage.archives()[0] + stage.archives()[1]) if KNOWN in line]
    assert "Is called Ana Lopez." in listed and "Prefers to be called in the morning." in listed
    assert "language model" not in listed


async def test_nothing_known_is_admitted(stage: Stage) -> None:
    await _call(stage, "What do you know about me?")
    assert _agent(await stage.archive())[1:] == ["I know nothing about you."]


async def test_forgotten_turn_is_nowhere(stage: Stage, tmp_path: Path) -> None:
    call, conversation = await _begin(stage)
    await _say(stage, call, conversation, "I prefer window seats.", "My sister moves to Zanzibar.", "Forget that.")
    await _say(stage, call, conversation, "Yes.")
    await call.hang_up()
    archive = await stage.archive()
    await stage.idle()
    assert not holding(["Zanzibar"], _places(tmp_path))
    assert "window seats" in archive and "Zanzibar" not in archive
    assert FORGET_ASKED in archive and "All right, I have forgotten it." in archive
    assert "Zanzibar" not in (await stage.document())["content"]


async def test_command_is_dropped_after_a_no(stage: Stage) -> None:
    await _call(stage, "My sister moves to Zanzibar.", "Forget that.", "No, thanks.")
    archive = await stage.archive()
    assert "Zanzibar" in archive and "All right, I leave everything as it is." in archive


async def test_off_record_leaves_no_trace(stage: Stage, tmp_path: Path) -> None:
    call, conversation = await _begin(stage)
    await _say(stage, call, conversation, "I prefer window seats.", "Off the record, my boss is called Xanthippe.")
    await _say(stage, call, conversation, "I prefer quokkas to my colleagues.")
    await until(lambda: not holding(["Xanthippe", "quokka"], _places(tmp_path)))
    await _say(stage, call, conversation, "Back on the record.", "I prefer aisle seats.")
    await call.hang_up()
    archive = await stage.archive()
    await stage.idle()
    assert "window seats" in archive and "aisle seats" in archive
    assert not holding(["Xanthippe", "quokka"], _places(tmp_path))


async def test_fresh_start_forgets_everything(stage: Stage, tmp_path: Path) -> None:
    await _call(stage, "My name is Xanthippe Lopez.", "I prefer window seats.")
    call, conversation = await _begin(stage)
    assert "Xanthippe" in conversation.prompt
    await _say(stage, call, conversation, "I have a parrot.", "Let's start fresh.")
    assert "Xanthippe" in conversation.prompt
    await _say(stage, call, conversation, "Yes, please.", "I have a quokka.")
    assert "Xanthippe" not in conversation.prompt and "window" not in conversation.prompt
    said = [message["content"] for message in conversation.history if message.get("role") == "assistant"]
    assert FORGOTTEN in said and any(FRESH_ASKED in text for text in said)
    await call.hang_up()
    await stage.idle()
    assert not stage.archives() and not await stage.documents()
    for word in ["Xanthippe", "window seat", "parrot", "quokka"]:
        assert not holding([word], _places(tmp_path)), word
    _, conversation = await stage.dial()
    assert "Xanthippe" not in conversation.prompt
    store = await open_local_store(tmp_path / "data")
    entries = await AuditLog(store, Secret(ADMIN)).page(AuditFilter(action="caller"), limit=9)
    await store.close()
    assert [(entry.action, entry.actor, entry.outcome, entry.agent) for entry in entries] == [
        ("caller.erase", "caller", "done", "maya")
    ]


@pytest.mark.parametrize("more_settings", [UNTRUSTED])
async def test_untrusted_caller_erases_nothing(stage: Stage) -> None:
    await _call(stage, "My name is Ana Lopez.")
    await _call(stage, "Start fresh.", "Yes.")
    assert "I'm sorry, I can't do that right now." in "".join(stage.archives())
    assert len(await stage.documents()) == 2


@pytest.mark.parametrize("manners", [{"text_first": False}, {"think": "speculative"}, {"think": "duplicate"}])
async def test_own_answer_of_the_agent_is_not_heard(stage: Stage) -> None:
    call, conversation = await _begin(stage)
    await _say(stage, call, conversation, "Forget that.")
    await call.hang_up()
    [_, answer] = _agent(await stage.archive())
    assert answer == "Shall I forget what you told me just now? Please say yes or no."


async def test_same_words_in_a_sentence_are_talk(stage: Stage) -> None:
    await _call(stage, "I forget that all the time.")
    assert _agent(await stage.archive())[1:] == [WRONG]


async def test_sound_of_the_answer_is_passed_on(stage: Stage) -> None:
    call, conversation = await _begin(stage)
    before = len(call.heard)
    await _say(stage, call, conversation, "Forget that.")
    assert await until(lambda: len(call.heard) > before)


@pytest.mark.parametrize("words", [["Let's start fresh."], ["Forget that."]])
async def test_redis_files_hold_nothing_that_was_forgotten_aloud(tmp_path: Path, words: list[str]) -> None:
    """The call is live while its words are deleted; the last ones go from the files when it is over."""

    async def held() -> bool:
        return bool(files_holding(tmp_path / "redis", "quokka"))

    async def gone() -> bool:
        return not await held()

    (tmp_path / "maya.md").write_text("You are Maya.\n{{memory}}")
    (tmp_path / "gateway.toml").write_text(MANAGED)
    async with running_redis(tmp_path / "redis") as redis:
        engine = FakeDeepgram(managed_answer=WRONG)
        async with staged(tmp_path, make_carrier("twilio"), engine=engine, REDIS_URL=redis.url) as stage:
            call, conversation = await _begin(stage)
            await _say(stage, call, conversation, "I have a quokka.")
            await until_it(held)
            await _say(stage, call, conversation, *words, "Yes, please.")
            await call.hang_up()
            await stage.idle()
            await until_it(gone)


async def test_pin_set_aloud_is_nowhere(stage: Stage, llm: FakeLlm, tmp_path: Path) -> None:
    # Long: four digits are in a session's id or a time by chance.
    await _call(stage, "Set my PIN to four seven one one eight two six three.", "Yes.")
    asked, done = _agent(await stage.archive())[1:]
    assert asked == "Shall I set the number you just gave as your PIN? Please say yes or no."
    assert done == "All right, your PIN is set."
    assert "CALLER: [PIN removed]" in await stage.archive()
    assert not holding(["four seven one one", "47118263"], _places(tmp_path))
    assert not any("four seven one one" in str(request) for request in llm.requests)
