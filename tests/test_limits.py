"""Limits against fraud and cost, in whole calls on both carriers."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from gateway.calls.call_end import TIME_IS_UP
from gateway.metrics import REGISTRY
from gateway.web.twilio import BUSY_TEXT
from tests.redis_server import running_redis
from tests.stage import (
    ADMIN,
    CALLER,
    PATIENCE,
    PUBLIC_URL,
    Stage,
    make_carrier,
    patient_client,
    running_gateway,
    staged,
    until_it,
)

OTHER = "+12025550199"


def refused(carrier: str, reason: str) -> float:
    labels = {"carrier": carrier, "reason": reason}
    return REGISTRY.get_sample_value("voice_gateway_refused_calls_total", labels) or 0


async def refused_politely(stage: Stage, caller: str = CALLER) -> None:
    """Twilio says a sentence; Telnyx could only do so in an answered call, so it is busy."""
    conversations = len(stage.engine.conversations)
    call = await stage.carrier.dial(caller)
    await call.over()
    if stage.carrier.name == "twilio":
        assert call.said == [BUSY_TEXT]
    else:
        assert call.rejected
        [rejection] = [one for one in stage.carrier.commands if (one.call_id, one.action) == (call.id, "reject")]
        assert rejection.body["cause"] == "USER_BUSY"
    assert len(stage.engine.conversations) == conversations


async def dial_when_free(stage: Stage, caller: str) -> Any:
    """Dial until the node knows that the last call has ended at the other."""
    async with asyncio.timeout(PATIENCE):
        while True:
            call = await stage.carrier.dial(caller)
            accepted = asyncio.create_task(stage.engine.next_conversation())
            refused = asyncio.create_task(call.over())
            await asyncio.wait({accepted, refused}, return_when=asyncio.FIRST_COMPLETED)
            refused.cancel()
            if accepted.done():
                await (await accepted).configured()
                return call
            accepted.cancel()


async def test_one_call_too_many(tmp_path: Path, carrier_name: str, caplog: pytest.LogCaptureFixture) -> None:
    before = refused(carrier_name, "full")
    async with staged(tmp_path, make_carrier(carrier_name), MAX_CALLS="1") as stage:
        call, _ = await stage.dial()
        await refused_politely(stage, OTHER)
        assert refused(carrier_name, "full") == before + 1
        [record] = [record for record in caplog.records if record.message == "call refused"]
        assert (record.reason, record.caller) == ("MAX_CALLS is reached", f"…{OTHER[-4:]}")
        await call.hang_up()
        await stage.idle()
        await stage.dial(OTHER)


async def test_three_calls_of_one_number_by_default(tmp_path: Path, carrier_name: str) -> None:
    before = refused(carrier_name, "caller busy")
    async with staged(tmp_path, make_carrier(carrier_name)) as stage:
        for _ in range(3):
            await stage.dial()
        await refused_politely(stage)
        assert refused(carrier_name, "caller busy") == before + 1
        await stage.dial(OTHER)


async def test_longest_call_ends_with_a_sentence_and_a_document(tmp_path: Path, carrier_name: str) -> None:
    async with staged(tmp_path, make_carrier(carrier_name), MAX_CALL_SECONDS="2") as stage:
        call, conversation = await stage.dial()
        await stage.played(call, conversation)
        await conversation.user_says("I have a long story.")
        assert (await conversation.message("InjectAgentMessage"))["message"] == TIME_IS_UP
        await call.over()
        assert call.ended_by != "caller"
        assert "CALLER: I have a long story." in await stage.archive()
        assert "AGENT: I'm sorry, this call has reached its time limit" in await stage.archive()
        assert "**Session:** voice-session:" in (await stage.document())["content"]


@pytest.mark.parametrize(
    ("limit", "caller"), [({"MAX_CALLS": "1"}, OTHER), ({"CALLS_PER_CALLER": "1"}, CALLER)], ids=["all", "caller"]
)
async def test_nodes_share_their_limits(tmp_path: Path, carrier_name: str, limit: dict[str, str], caller: str) -> None:
    async with running_redis(tmp_path / "redis") as redis:
        shared = {**limit, "REDIS_URL": redis.url}
        async with staged(tmp_path, make_carrier(carrier_name), **shared) as stage:
            environ = {
                "DATA_DIR": str(tmp_path / "data-2"),
                "PUBLIC_URL": PUBLIC_URL,
                "ALLOWED_CALLERS": "*",
                "DEEPGRAM_API_KEY": "dg-test-key",
                "DEEPGRAM_AGENT_URL": stage.engine.url,
                "MEMORY_VECTORS": "false",
                "GATEWAY_ADMIN_TOKEN": ADMIN,
                **stage.carrier.settings(),
                **shared,
            }
            async with running_gateway(environ, tmp_path) as other:
                call, _ = await stage.dial()
                stage.carrier.gateway_url = other
                await refused_politely(stage, caller)
                await call.hang_up()
                await stage.idle()
                call = await dial_when_free(stage, caller)
                await call.hang_up()
                await stage.idle()
                await _ringing_phone_counts(stage, other, caller, limit)


async def _ringing_phone_counts(stage: Stage, other: str, caller: str, limit: dict[str, str]) -> None:
    """At the node that did not dial it, too, and no longer when it was not answered."""
    stage.carrier.callee = "rings"

    async def is_placed() -> bool:
        return (await place(stage, CALLER))[0] == 202

    await until_it(is_placed)  # the node may not know yet that the last call has ended at the other
    stage.carrier.gateway_url = other
    await refused_politely(stage, caller)
    async with patient_client(other, headers={"X-API-Key": ADMIN}) as http:
        answer = await http.post("/v1/outbound/call", json={"to": caller, "from": "+12025550100"})
    assert (answer.status_code, answer.json()["detail"]) == (429, f"{next(iter(limit))} is reached")
    assert int(answer.headers["Retry-After"]) > 0
    [ringing] = [call for call in stage.carrier.calls if not call.ended_by and not call.rejected]
    await ringing.decline()
    call = await dial_when_free(stage, caller)
    await call.hang_up()


# Outbound


@pytest.fixture
async def stage(carrier_name: str, tmp_path: Path) -> Any:
    async with staged(tmp_path, make_carrier(carrier_name), OUTBOUND_PER_HOUR="2", MAX_CALLS="4") as made:
        made.carrier.callee = "busy"
        yield made


async def place(stage: Stage, to: str = CALLER) -> tuple[int, str]:
    answer = await stage.http.post("/v1/outbound/call", json={"to": to, "from": "+12025550100"})
    assert (answer.status_code == 429) == (0 < int(answer.headers.get("Retry-After", 0)) <= 3600)
    return answer.status_code, answer.json().get("detail", "")


@pytest.mark.parametrize("number", ["+442079460123", "+18765550100", "+19005550100", "+881612345678"])
async def test_number_that_is_not_allowed_gets_403(stage: Stage, number: str) -> None:
    before = refused(stage.carrier.name, "number not allowed")
    status, detail = await place(stage, number)
    assert (status, stage.carrier.calls) == (403, [])
    assert detail.endswith("add its prefix to OUTBOUND_ALLOWED")
    assert refused(stage.carrier.name, "number not allowed") == before + 1


async def test_named_numbers_may_be_dialled(tmp_path: Path, carrier_name: str) -> None:
    async with staged(tmp_path, make_carrier(carrier_name), OUTBOUND_ALLOWED="*,+881") as stage:
        for number in (CALLER, "+442079460123", "+881612345678"):
            assert await place(stage, number) == (202, "")
        assert (await place(stage, "+19005550100"))[0] == 403


async def test_so_many_calls_an_hour(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    assert [(await place(stage))[0] for _ in range(2)] == [202, 202]
    assert (await place(stage, "+19005550100"))[0] == 403  # not counted
    assert await place(stage) == (429, "OUTBOUND_PER_HOUR calls were placed in the last hour")
    assert "outbound call refused" in caplog.messages
    assert len(stage.carrier.calls) == 2


async def test_no_outbound_call_beyond_the_limit_of_calls(stage: Stage) -> None:
    stage.carrier.callee = "rings"
    assert await place(stage, "+12025550198") == (202, "")
    for _ in range(3):
        await stage.dial()
    assert await place(stage, OTHER) == (429, "MAX_CALLS is reached")


async def test_function_can_not_transfer_to_a_costly_number(tmp_path: Path, carrier_name: str) -> None:
    (tmp_path / "tools.py").write_text(
        "def premium(conv: Conversation):\n"
        '    """Transfers to a premium-rate number."""\n'
        '    conv.transfer("+19005550100")\n'
    )
    (tmp_path / "gateway.toml").write_text('[agents.maya]\nfunctions = "tools.py"\n')
    async with staged(tmp_path, make_carrier(carrier_name)) as stage:
        call, conversation = await stage.dial()
        await conversation.call_functions(["premium"])
        assert (await conversation.message("InjectAgentMessage"))["message"].startswith("I'm sorry, I could not")
        assert len(stage.carrier.calls) == 1
        await call.hang_up()
