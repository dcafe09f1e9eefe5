"""What calls teach of a caller, and the agent knows the next time. Without a language model. Both carriers."""

import pytest

from gateway.history.calls_table import CallRowFilter, CallsTable
from gateway.history.stores import open_local_store
from gateway.memory.facts import FactStore
from tests.stage import CALLER, Stage


async def _call(stage: Stage, *turns: str, caller: str = CALLER) -> str:
    """One call; the prompt that its agent had."""
    call, conversation = await stage.dial(caller)
    prompt: str = conversation.prompt
    for text in turns:
        await conversation.user_says(text)
    await call.hang_up()
    await stage.idle()
    return prompt


async def test_fact_is_known_in_the_next_call(stage: Stage) -> None:
    await _call(stage, "My name is Ana Lopez.", "I prefer to be called in the morning.")
    prompt = await _call(stage, "Hello again.")
    assert "<caller_facts>" in prompt and "Ana Lopez" in prompt.split("<caller_facts>")[1].split("</caller_facts>")[0]


async def test_known_names_are_keyterms_of_the_recogniser(stage: Stage) -> None:
    await _call(stage, "My name is Ana Lopez.")
    call, conversation = await stage.dial(CALLER)
    assert "Ana Lopez" in conversation.settings["agent"]["listen"]["provider"]["keyterms"]
    await call.hang_up()
    await stage.idle()


async def test_correction_replaces_the_fact(stage: Stage) -> None:
    await _call(stage, "My name is Ana Lopez.")
    await _call(stage, "My name is Anna Lopes.")
    facts = (await _call(stage, "Hello.")).split("<caller_facts>")[1].split("</caller_facts>")[0]
    assert "Anna Lopes" in facts and "Ana Lopez" not in facts


async def test_facts_belong_to_their_caller(stage: Stage) -> None:
    await _call(stage, "My name is Ana Lopez.")
    assert "Ana Lopez" not in await _call(stage, "Hello.", caller="+12025550188")


async def test_receipt_lists_injected_facts(stage: Stage, tmp_path) -> None:
    await _call(stage, "My name is Ana Lopez.")
    prompt = await _call(stage, "Hello again.")
    store = await open_local_store(tmp_path / "data")
    try:
        second, first = await CallsTable(store).newest(CallRowFilter(caller=CALLER))
        assert second.receipt["tier"] == "everything"
        assert second.receipt["block"] in prompt
        kinds = {item["kind"]: item for item in second.receipt["items"]}
        assert kinds["fact"]["session"] == kinds["call"]["session"] == first.session_id
        assert kinds["fact"]["turns"]
        for item in second.receipt["items"]:
            assert item.keys() >= {"session", "turns", "age_days", "score", "tokens"} and item["tier"] == "everything"
    finally:
        await store.close()


async def test_reverted_call_taught_nothing(stage: Stage, tmp_path) -> None:
    await _call(stage, "My name is Ana Lopez.")
    store = await open_local_store(tmp_path / "data")
    try:
        [call] = await CallsTable(store).newest(CallRowFilter(caller=CALLER))
        assert await FactStore(store).revert(call.session_id)
    finally:
        await store.close()
    assert "<caller_facts>" not in await _call(stage, "Hello.")


@pytest.mark.parametrize("source", ["caller-fact", "pinned-topic"])
async def test_stranger_among_the_facts_spoils_nothing(stage: Stage, source: str) -> None:
    """Another program may use the store, and write what looks like ours."""
    tags = [source, "agent:maya", f"caller:{CALLER}"]
    document = {"content": "Red.", "source": source, "source_id": "copied", "tags": tags}
    assert (await stage.http.post("/v1/documents", json=document)).status_code == 201
    await _call(stage, "I need a chain for my bike before Friday.")
    assert "chain for my bike" in (await stage.document())["content"]
