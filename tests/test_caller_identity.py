"""Callers identified by more than their number: whose memory a call gets. Both carriers."""

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.history.erasure import DataLocations, Eraser, NoSharedData, holding
from gateway.history.stores import Stores, open_local_store
from gateway.settings import Secret
from tests.stage import ADMIN, CALLER, Stage, make_carrier, staged, until_it

FUNCTIONS = '''
from gateway import Conversation


def customer_is(conv: Conversation, number: str) -> str:
    """Note who it is."""
    conv.state["customer_id"] = number
    return "noted"


def take_seat(conv: Conversation, seat: str) -> str:
    """Note where they like to sit."""
    conv.state["seat"] = seat
    return "noted"


def usual_seat(conv: Conversation) -> str:
    """Where they like to sit."""
    return conv.memory.get("seat", "unknown")
'''
OTHER_PHONE = "+12025550188"


@pytest.fixture
def source() -> str:
    return "integration_attribute:customer_id"


@pytest.fixture
async def stage(carrier_name: str, tmp_path: Path, source: str) -> AsyncIterator[Stage]:
    (tmp_path / "maya.md").write_text("You are Maya.\n{{memory}}")
    (tmp_path / "functions.py").write_text(FUNCTIONS)
    (tmp_path / "gateway.toml").write_text(
        '[agents.maya]\nprompt = "maya.md"\nfunctions = "functions.py"\n'
        f'[agents.maya.memory.repeat_caller]\nidentifier_source = "{source}"\nstate_keys = ["seat"]\n'
    )
    async with staged(tmp_path, make_carrier(carrier_name)) as made:
        yield made


async def _call(stage: Stage, *turns: str, caller: str = CALLER, customer: str = "") -> str:
    """One call with these fields in its webhook; returns its prompt."""
    fields: dict[str, Any] = {}
    if stage.carrier.name == "twilio":
        stage.carrier.voice_path = f"/twilio/incoming?customer_id={customer}"
    elif customer:
        fields["client_state"] = base64.b64encode(json.dumps({"customer_id": customer}).encode()).decode()
    return await _talk(stage, caller, *turns, **fields)


async def _talk(stage: Stage, caller: str, *turns: str, **fields: Any) -> str:
    call, conversation = await stage.dial(caller, **fields)
    for text in turns:
        await conversation.user_says(text)
    await call.hang_up()
    await stage.idle()
    prompt: str = conversation.prompt
    return prompt


async def test_customer_is_known_on_any_phone(stage: Stage) -> None:
    await _call(stage, "My name is Ana Lopez.", customer="8812")
    assert "Ana Lopez" in await _call(stage, caller=OTHER_PHONE, customer="8812")
    assert "Ana Lopez" not in await _call(stage, customer="8813")
    assert "Ana Lopez" not in await _call(stage)


async def test_number_is_used_without_an_identifier(stage: Stage) -> None:
    await _call(stage, "My name is Ana Lopez.")
    assert "Ana Lopez" in await _call(stage)


async def test_parameter_of_the_stream_tells_who_it_is(stage: Stage) -> None:
    _tell_in_stream(stage, "8812")
    await _talk(stage, CALLER, "My name is Ana Lopez.")
    assert "Ana Lopez" in await _talk(stage, OTHER_PHONE)
    _tell_in_stream(stage, "8813")
    assert "Ana Lopez" not in await _talk(stage, CALLER)


def _tell_in_stream(stage: Stage, customer: str) -> None:
    """The carrier passes on a parameter of the stream."""
    begins = type(stage.carrier).start_message

    def start_message(call: Any, **fields: Any) -> dict[str, Any]:
        message: dict[str, Any] = begins(stage.carrier, call, **fields)
        name = "customParameters" if stage.carrier.name == "twilio" else "custom_parameters"
        message["start"].setdefault(name, {})["customer_id"] = customer
        return message

    stage.carrier.start_message = start_message


async def _identified(stage: Stage, caller: str, customer: str, *turns: str) -> tuple[str, str]:
    """A call in which a function finds out who it is: the prompt before and after."""
    call, conversation = await stage.dial(caller)
    before = conversation.prompt
    asked = [{"name": "customer_is", "arguments": json.dumps({"number": customer})}]
    await conversation.call_functions(asked)
    await conversation.message("UpdateThink")
    for text in turns:
        await conversation.user_says(text)
    if not turns:
        [found] = await conversation.call_functions([{"name": "search_memory", "arguments": '{"query": "seats"}'}])
        conversation.found = found
    await call.hang_up()
    await stage.idle()
    return before, conversation.prompt + getattr(conversation, "found", "")


@pytest.mark.parametrize("source", ["state:customer_id"])
async def test_function_finds_out_who_it_is(stage: Stage) -> None:
    await _talk(stage, OTHER_PHONE, "My name is Ben Okri.")
    await _identified(stage, CALLER, "8812", "My name is Ana Lopez.", "I prefer window seats.")
    before, after = await _identified(stage, OTHER_PHONE, "8812")
    assert "Ben Okri" in before and "Ana Lopez" not in before
    assert "Ana Lopez" in after and "window seats" in after and "Ben Okri" not in after
    assert "Ana Lopez" not in await _talk(stage, CALLER)


async def _asked(conversation: Any, name: str, **arguments: str) -> str:
    [answer] = await conversation.call_functions([{"name": name, "arguments": json.dumps(arguments)}])
    return str(answer)


@pytest.mark.parametrize("source", ["state:customer_id"])
async def test_functions_know_what_was_kept_of_whom_they_found(stage: Stage) -> None:
    for caller, customer, seat in ((OTHER_PHONE, "", "aisle"), (CALLER, "8812", "window")):
        call, conversation = await stage.dial(caller)
        await conversation.user_says("Hello.")
        if customer:
            await _asked(conversation, "customer_is", number=customer)
        await _asked(conversation, "take_seat", seat=seat)
        await call.hang_up()
        await stage.idle()
    _, conversation = await stage.dial(OTHER_PHONE)
    assert await _asked(conversation, "usual_seat") == "aisle"
    await _asked(conversation, "customer_is", number="8812")

    async def seat() -> str:
        answer: str = await _asked(conversation, "usual_seat")
        return "" if answer == "unknown" else answer

    assert await until_it(seat) == "window"


async def test_tools_see_what_another_call_has_kept(stage: Stage) -> None:
    _, first = await stage.dial()
    call, second = await stage.dial()
    await second.user_says("A window seat, please.")
    await _asked(second, "take_seat", seat="window")
    await call.hang_up()
    await stage.document()
    assert await _asked(first, "usual_seat") == "unknown"  # it is read once a turn

    async def is_known() -> bool:
        await first.user_says("Where do I sit?")
        return await _asked(first, "usual_seat") == "window"

    await until_it(is_known)


async def test_erasure_by_number_finds_every_customer_on_it(stage: Stage, tmp_path: Path) -> None:
    """What they left from other phones goes too; a customer who never called from this number stays."""
    await _call(stage, "My name is Xanthippe Lopez.", customer="8812")
    await _call(stage, "I prefer quokkas.", caller=OTHER_PHONE, customer="8812")
    await _call(stage, "I prefer walnuts.")
    await _call(stage, "My name is Ben Okri.", caller=OTHER_PHONE, customer="8899")
    places = DataLocations(tmp_path / "data", tmp_path / "archive")
    store = await open_local_store(places.data_dir)
    eraser = Eraser(Stores(store, store), places, None, Secret(ADMIN), NoSharedData())
    found = await eraser.find_all(CALLER)
    assert [data.caller for data in found] == [CALLER, "integration_attribute:customer_id:8812"]
    assert (await eraser.erase_all(found)).is_complete
    await store.close()
    for word in ("Xanthippe", "quokka", "walnut", "8812", CALLER):
        assert not holding([word], places), word
    assert "Ben Okri" in await _call(stage, caller=OTHER_PHONE, customer="8899")
