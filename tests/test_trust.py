"""Trust levels in whole calls: how much of a memory the agent gets. Both carriers."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.history.calls_table import CallsTable
from gateway.history.erasure import DataLocations, holding
from gateway.history.stores import open_local_store
from tests.redis_server import running_redis
from tests.stage import CALLER, PUBLIC_URL, Stage, make_carrier, running_gateway, staged, until, until_it

CONFIGURATION = """
[agents.maya]
prompt = "maya.md"

[agents.maya.memory.trust]
attested = "everything"
unattested = "name"
failed = "none"
with_pin = "everything"
pin = "4711"
"""


@pytest.fixture
async def stage(carrier_name: str, tmp_path: Path) -> AsyncIterator[Stage]:
    (tmp_path / "maya.md").write_text("You are Maya, talking to {{caller}}.\n{{memory}}")
    (tmp_path / "gateway.toml").write_text(CONFIGURATION)
    async with staged(tmp_path, make_carrier(carrier_name)) as made:
        yield made


def _vouched(stage: Stage, level: str, *, passed: bool = True) -> dict[str, Any]:
    """How the carrier says who vouches for the number."""
    if stage.carrier.name == "twilio":
        return {"StirVerstat": f"TN-Validation-{'Passed' if passed else 'Failed'}-{level}"}
    return {"shaken_stir_attestation": level, "shaken_stir_validated": passed}


async def _remember(stage: Stage) -> None:
    call, conversation = await stage.dial(**_vouched(stage, "A"))
    await conversation.user_says("My name is Ana, and my red bike has a flat tyre.")
    await call.hang_up()
    await stage.document()


async def test_attested_caller_gets_everything(stage: Stage) -> None:
    await _remember(stage)
    _, conversation = await stage.dial(**_vouched(stage, "A"))
    assert "flat tyre" in conversation.prompt


async def test_unattested_caller_is_only_named(stage: Stage) -> None:
    await _remember(stage)
    _, conversation = await stage.dial(**_vouched(stage, "C"))
    assert "talking to Ana" in conversation.prompt and "<caller_name>Ana</caller_name>" in conversation.prompt
    assert "flat tyre" not in conversation.prompt
    [found] = await conversation.call_functions([{"name": "search_memory", "arguments": '{"query": "tyre"}'}])
    assert "flat tyre" not in found


async def test_name_is_known_however_long_ago_it_was_given(stage: Stage, tmp_path: Path) -> None:
    """Also in a prompt whose only placeholder is the memory, and in the receipt."""
    await _remember(stage)
    for _ in range(4):
        call, conversation = await stage.dial(**_vouched(stage, "A"))
        await conversation.user_says("Is my bike ready?")
        await call.hang_up()
        await stage.idle()
    call, conversation = await stage.dial(**_vouched(stage, "C"))
    assert "<caller_name>Ana</caller_name>" in conversation.prompt and "bike" not in conversation.prompt
    await conversation.user_says("Hello.")
    await call.hang_up()
    await stage.idle()
    store = await open_local_store(tmp_path / "data")
    try:
        [last, *_] = await CallsTable(store).newest()
    finally:
        await store.close()
    [item] = last.receipt["items"]
    assert (item["kind"], item["text"], item["tier"], last.receipt["tier"]) == ("name", "Ana", "name", "name")
    assert last.receipt["block"] in conversation.prompt


async def test_forged_number_gets_nothing(stage: Stage) -> None:
    await _remember(stage)
    _, conversation = await stage.dial(**_vouched(stage, "A", passed=False))
    assert "Ana" not in conversation.prompt and "flat tyre" not in conversation.prompt


async def test_pin_by_keypad_opens_memory(stage: Stage) -> None:
    await _remember(stage)
    call, conversation = await stage.dial(**_vouched(stage, "C"))
    await call.press("4711#")
    assert "flat tyre" in (await conversation.message("UpdatePrompt"))["prompt"]


async def test_spoken_pin_opens_memory_and_is_not_kept(stage: Stage) -> None:
    await _remember(stage)
    call, conversation = await stage.dial(**_vouched(stage, "C"))
    await conversation.user_says("My PIN is four seven one one.")
    assert "flat tyre" in (await conversation.message("UpdatePrompt"))["prompt"]
    await call.hang_up()
    await stage.idle()
    assert not any("four seven one one" in text or "4711" in text for text in stage.archives())


async def test_wrong_pin_opens_nothing(stage: Stage) -> None:
    await _remember(stage)
    call, conversation = await stage.dial(**_vouched(stage, "C"))
    await call.press("4712#")
    await conversation.user_says("What did we talk about?")
    assert not conversation.received("UpdatePrompt")


# The default levels

FUNCTIONS = '''
from gateway import Conversation, requires


def take_seat(conv: Conversation, seat: str) -> str:
    """Note where they like to sit."""
    conv.state["seat"] = seat
    return "noted"


def usual_seat(conv: Conversation) -> str:
    """Where they like to sit."""
    return f"{conv.trust}: {conv.memory.get('seat', 'unknown')}"


@requires("everything")
def balance(conv: Conversation) -> str:
    """What they owe."""
    return "twelve dollars"


def set_pin(conv: Conversation, new_pin: str) -> str:
    """Give them a PIN."""
    conv.set_pin(new_pin)
    return "set"
'''
BY_HEADER = """
[agents.maya.memory.repeat_caller]
identifier_source = "sip_header:X-Customer-Id"
state_keys = ["seat"]

[agents.maya.memory.trust]
trusted_trunks = ["pbx.sip.twilio.com", "1700000000000000001"]
"""
PLAIN = """
[agents.maya.memory.repeat_caller]
state_keys = ["seat"]
"""


def _configure(folder: Path, more: str = PLAIN) -> None:
    (folder / "maya.md").write_text("You are Maya.\n{{memory}}")
    (folder / "functions.py").write_text(FUNCTIONS)
    (folder / "gateway.toml").write_text(f'[agents.maya]\nprompt = "maya.md"\nfunctions = "functions.py"\n{more}')


async def _ask(conversation: Any, name: str, arguments: str = "{}") -> str:
    [answer] = await conversation.call_functions([{"name": name, "arguments": arguments}])
    return str(answer)


async def _teach(stage: Stage, *turns: str, seat: str, **fields: Any) -> Any:
    """A call that says something and sets state."""
    call, conversation = await stage.dial(**fields)
    for text in turns:
        await conversation.user_says(text)
    await _ask(conversation, "take_seat", f'{{"seat": "{seat}"}}')
    await call.hang_up()
    await stage.idle()
    return conversation


async def test_failed_verdict_reads_and_teaches_nothing(carrier_name: str, tmp_path: Path) -> None:
    """There is a transcript, and no facts, state or topics; what a trusted call taught stays as it was."""
    _configure(tmp_path)
    async with staged(tmp_path, make_carrier(carrier_name)) as stage:
        forged, attested = _vouched(stage, "A", passed=False), _vouched(stage, "A")
        await _teach(stage, "My name is Mallory.", "I always want oysters.", seat="aisle", **forged)
        assert [text for text in stage.archives() if "oysters" in text]
        assert await stage.documents() == []
        call, conversation = await stage.dial(**attested)
        assert "Mallory" not in conversation.prompt and "oysters" not in conversation.prompt
        assert await _ask(conversation, "usual_seat") == "everything: unknown"
        await call.hang_up()
        await _teach(stage, "My name is Ana.", "I always want tea.", seat="window", **attested)
        await _teach(stage, "My name is Mallory.", seat="aisle", **forged)
        call, conversation = await stage.dial(**forged)
        assert "Ana" not in conversation.prompt and "tea" not in conversation.prompt
        assert await _ask(conversation, "usual_seat") == "none: unknown"
        assert "tea" not in await _ask(conversation, "search_memory", '{"query": "tea"}')
        assert "not available in this call" in await _ask(conversation, "balance")
        await call.hang_up()
        _, conversation = await stage.dial(**attested)
        assert "Ana" in conversation.prompt and "Mallory" not in conversation.prompt
        assert await _ask(conversation, "usual_seat") == "everything: window"
        assert await _ask(conversation, "balance") == "twelve dollars"


def _by_header(stage: Stage, customer: str, *, trusted: bool) -> dict[str, Any]:
    if stage.carrier.name == "twilio":
        domain = "pbx.sip.twilio.com" if trusted else "evil.sip.twilio.com"
        return {"SipHeader_X-Customer-Id": customer, "SipDomain": domain}
    connection = "1700000000000000001" if trusted else "1700000000000000002"
    return {"custom_headers": [{"name": "X-Customer-Id", "value": customer}], "connection_id": connection}


async def test_sip_header_counts_from_a_trusted_trunk_only(carrier_name: str, tmp_path: Path) -> None:
    _configure(tmp_path, BY_HEADER)
    async with staged(tmp_path, make_carrier(carrier_name)) as stage:
        attested = _vouched(stage, "A")
        await _teach(stage, "I always want tea.", seat="window", **_by_header(stage, "C-17", trusted=True))
        forged = _by_header(stage, "C-17", trusted=False) | attested
        call, conversation = await stage.dial(**forged)
        assert await _ask(conversation, "usual_seat") == "summaries: unknown"
        await call.hang_up()
        await _teach(stage, "I always want gin.", seat="aisle", **forged)
        call, conversation = await stage.dial("+12025550177", **_by_header(stage, "C-17", trusted=True))
        assert await _ask(conversation, "usual_seat") == "everything: window"
        assert "tea" in conversation.prompt
        await call.hang_up()


# A PIN of the caller's own


def _nowhere(folder: Path, caplog: pytest.LogCaptureFixture, *words: str) -> None:
    """Not in the call log with its events, a store, a transcript or a recording, and not logged."""
    places = DataLocations(folder / "data", folder / "archive", folder / "recordings")
    assert not holding(list(words), places)
    logged = "".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records)
    assert not [word for word in words if word in logged]


async def _trusted(conversation: Any) -> None:
    """Wait until the call has the highest level."""

    async def may_ask() -> bool:
        await conversation.user_says("What do I owe?")  # or it would be a loop of function calls
        return await _ask(conversation, "balance") == "twelve dollars"

    await until_it(may_ask)


async def test_pin_set_aloud_opens_memory_and_is_nowhere(
    carrier_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="gateway")
    _configure(tmp_path)
    record_dir = tmp_path / "recordings"
    async with staged(tmp_path, make_carrier(carrier_name), RECORD_DIR=str(record_dir)) as stage:
        call, conversation = await stage.dial(**_vouched(stage, "A"))
        await conversation.user_says("My red bike has a flat tyre.")
        for said, reply in (
            ("Set my PIN to four seven one one eight two.", "Shall I set the number you just gave"),
            ("Yes.", "All right, your PIN is set."),
        ):
            await conversation.user_says(said)
            assert reply in (await conversation.message("InjectAgentMessage"))["message"]
        await call.hang_up()
        await stage.idle()
        call, conversation = await stage.dial(**_vouched(stage, "C"))
        assert "flat tyre" not in await _ask(conversation, "search_memory", '{"query": "tyre"}')
        await call.press("471182")  # without #
        await _trusted(conversation)
        assert "flat tyre" in await _ask(conversation, "search_memory", '{"query": "tyre"}')
        await call.hang_up()
        await stage.idle()
        call, conversation = await stage.dial(**_vouched(stage, "A", passed=False))
        await conversation.user_says("My PIN is four seven one one eight two.")
        assert "flat tyre" in (await conversation.message("UpdatePrompt"))["prompt"]
        await stage.answer(call, conversation, "Thank you, four seven one one eight two it is.")
        await call.hang_up()
        await stage.idle()
    assert list(record_dir.iterdir()) == []
    assert any("[PIN removed]" in text for text in stage.archives())
    assert any("AGENT: Thank you, [PIN removed] it is." in text for text in stage.archives())
    _nowhere(tmp_path, caplog, "471182", "four seven one one", "4 7 1 1")


async def test_pin_in_the_arguments_of_a_function_is_nowhere(
    carrier_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="gateway")
    _configure(tmp_path)
    async with staged(tmp_path, make_carrier(carrier_name), RECORD_DIR=str(tmp_path / "recordings")) as stage:
        call, conversation = await stage.dial(**_vouched(stage, "A"))
        await conversation.user_says("I would like a secret number.")
        assert await _ask(conversation, "set_pin", '{"new_pin": "471182"}') == "set"
        await call.hang_up()
        await stage.idle()
        call, conversation = await stage.dial(**_vouched(stage, "C"))
        await call.press("471182")
        await _trusted(conversation)
    _nowhere(tmp_path, caplog, "471182")


async def test_listed_number_without_a_verdict_is_refused_politely(carrier_name: str, tmp_path: Path) -> None:
    """It reads everything, and neither erases everything nor sets a PIN aloud: it may be forged."""
    _configure(tmp_path)
    async with staged(tmp_path, make_carrier(carrier_name), ALLOWED_CALLERS=CALLER) as stage:
        unknown = {"StirVerstat": ""} if stage.carrier.name == "twilio" else _vouched(stage, "C")
        await _teach(stage, "My name is Ana.", seat="window", **unknown)
        call, conversation = await stage.dial(**unknown)
        assert "Ana" in conversation.prompt
        for said in ("Forget everything about me.", "Yes.", "Set my PIN to 4711."):
            await conversation.user_says(said)
            if said != "Yes.":
                refusal = (await conversation.message("InjectAgentMessage"))["message"]
                assert refusal == "I'm sorry, I can't do that right now."
        await call.hang_up()
        await stage.idle()
        _, conversation = await stage.dial(**unknown)
        assert "Ana" in conversation.prompt


async def _results(caplog: pytest.LogCaptureFixture, count: int) -> list[str]:
    """The results of so many attempts at a PIN."""

    def results() -> list[str]:
        return [record.result for record in caplog.records if record.message == "PIN tried"]

    await until(lambda: len(results()) >= count)
    return results()


async def test_failures_count_at_nodes_with_a_store_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With REDIS_URL and without DATABASE_URL."""
    (tmp_path / "maya.md").write_text("You are Maya.\n{{memory}}")
    (tmp_path / "gateway.toml").write_text(CONFIGURATION)
    caplog.set_level("INFO", logger="gateway")
    async with running_redis(tmp_path / "redis") as redis:
        async with staged(tmp_path, make_carrier("twilio"), REDIS_URL=redis.url) as stage:
            environ = {
                "DATA_DIR": str(tmp_path / "data-2"),
                "PUBLIC_URL": PUBLIC_URL,
                "ALLOWED_CALLERS": "*",
                "DEEPGRAM_API_KEY": "dg-test-key",
                "DEEPGRAM_AGENT_URL": stage.engine.url,
                "MEMORY_VECTORS": "false",
                "REDIS_URL": redis.url,
                **stage.carrier.settings(),
            }
            async with running_gateway(environ, tmp_path) as other:
                call, conversation = await stage.dial(**_vouched(stage, "C"))
                await call.press("4712#4712#4712#")
                assert await _results(caplog, 3) == ["wrong"] * 3
                await conversation.user_says("Hello.")
                await call.hang_up()
                await stage.idle()
                stage.carrier.gateway_url = other
                call, conversation = await stage.dial(**_vouched(stage, "C"))
                await call.press("4712#4712#")
                assert await _results(caplog, 5) == ["wrong"] * 5
                await call.press("4711")  # right, and too late
                assert await _results(caplog, 6) == ["wrong"] * 5 + ["locked"]
                assert not conversation.received("UpdatePrompt")
                await call.hang_up()


async def test_failures_count_without_sessions(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is stored of the caller, and three guesses in each call would add up to all of them."""
    caplog.set_level("INFO", logger="gateway")
    _configure(tmp_path, '[agents.maya.memory.trust]\npin = "4711"\n')
    async with staged(tmp_path, make_carrier("twilio"), VOICE_SESSION_ENABLED="false") as stage:
        for count in (3, 6):
            call, _ = await stage.dial(**_vouched(stage, "C"))
            await call.press("4712#4712#4712#")
            await _results(caplog, count)
            await call.hang_up()
            await stage.idle()
        call, conversation = await stage.dial(**_vouched(stage, "C"))
        await call.press("4711")
        results = await _results(caplog, 7)
        assert (sorted(results[:6]), results[6]) == (["locked", *["wrong"] * 5], "locked")
        assert "not available in this call" in await _ask(conversation, "balance")
        await call.hang_up()
    stored = b"".join(path.read_bytes() for path in (tmp_path / "data").iterdir() if path.is_file())
    assert CALLER.encode() not in stored


async def test_withheld_numbers_share_their_failures(
    carrier_name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Or a caller who hides the number could try all PINs, three in each call."""
    caplog.set_level("INFO", logger="gateway")
    _configure(tmp_path, '[agents.maya.memory.trust]\npin = "4711"\n')
    async with staged(tmp_path, make_carrier(carrier_name)) as stage:
        for count in (3, 6):
            call, _ = await stage.dial("anonymous")
            await call.press("4712#4712#4712#")
            await _results(caplog, count)
            await call.hang_up()
            await stage.idle()
        call, conversation = await stage.dial("anonymous")
        await call.press("4711")
        results = await _results(caplog, 7)
        assert (sorted(results[:6]), results[6]) == (["locked"] * 2 + ["wrong"] * 4, "locked")
        assert "not available in this call" in await _ask(conversation, "balance")
        await call.hang_up()
