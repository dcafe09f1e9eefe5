import asyncio
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.stage import Stage, make_carrier, running_gateway, staged


@pytest.fixture
async def stage(tmp_path: Path):
    async with staged(tmp_path, make_carrier("twilio")) as stage:
        yield stage


def verbs(answer) -> list[str]:
    assert answer.content_type.startswith("text/xml")
    return [verb.tag for verb in ElementTree.fromstring(answer.answer)]


@pytest.mark.parametrize("signature", ["wrong", "none", ""])
async def test_unsigned_webhook_is_refused(stage: Stage, signature: str) -> None:
    for path in ("/twilio/incoming", "/twilio/resume", "/twilio/status"):
        answer = await stage.carrier.webhook(stage.carrier.new_call(), path=path, signature=signature or "AAAA")
        assert answer.status == 403
    assert stage.engine.conversations == []


async def test_repeated_webhook_gets_the_same_answer(stage: Stage) -> None:
    call = stage.carrier.new_call()
    first = await stage.carrier.webhook(call)
    second = await stage.carrier.webhook(call)
    assert first.answer == second.answer
    assert verbs(first) == ["Connect"]


async def test_webhook_without_a_call_is_refused(stage: Stage) -> None:
    answer = await stage.carrier.webhook(form={"CallSid": ""})
    assert answer.status == 400


async def test_twiml_names_public_addresses(stage: Stage) -> None:
    answer = await stage.carrier.webhook(stage.carrier.new_call())
    assert 'action="https://voice.example.com/twilio/resume"' in answer.answer
    assert 'url="wss://voice.example.com/twilio/media"' in answer.answer


async def test_tunnel_needs_no_public_url(tmp_path: Path) -> None:
    carrier = make_carrier("twilio", public_url=None, tunnel_url="https://tunnel.example.net")
    async with staged(tmp_path, carrier, PUBLIC_URL="") as stage:
        call, _ = await stage.dial()
        assert call.media_url == "wss://tunnel.example.net/twilio/media"
        await call.hang_up()


async def test_resume_after_the_end_hangs_up(stage: Stage) -> None:
    call, _ = await stage.dial()
    await call.hang_up()
    await stage.idle()
    assert verbs(await stage.carrier.webhook(call, path="/twilio/resume")) == ["Hangup"]


async def test_finished_call_is_not_let_in_again(stage: Stage) -> None:
    call = stage.carrier.new_call()
    await stage.carrier.webhook(call, path="/twilio/status", form={**call.form(), "CallStatus": "completed"})
    assert verbs(await stage.carrier.webhook(call)) == ["Reject"]


async def test_status_callback_ends_the_call(stage: Stage) -> None:
    call, conversation = await stage.dial()
    answer = await stage.carrier.webhook(call, path="/twilio/status", form={**call.form(), "CallStatus": "completed"})
    assert answer.status == 204
    await conversation.wait_closed()


async def test_stream_callbacks_end_nothing(stage: Stage) -> None:
    call, conversation = await stage.dial()
    for event in ("stream-stopped", "stream-error", "stream-started"):
        form = {"CallSid": call.id, "StreamEvent": event, "StreamSid": call.stream.id}
        assert (await stage.carrier.webhook(call, path="/twilio/status", form=form)).status == 204
    await conversation.user_says("Still here.")
    await call.hang_up()
    assert (await stage.archive()).endswith("CALLER: Still here.\n")


async def test_get_is_not_allowed(stage: Stage) -> None:
    assert (await stage.http.get("/twilio/incoming")).status_code == 405


async def test_overlong_body_is_refused(stage: Stage) -> None:
    answer = await stage.http.post("/twilio/incoming", content=b"a=" + b"x" * 70_000)
    assert answer.status_code == 413


async def test_without_keys_twilio_is_not_served(tmp_path: Path) -> None:
    carrier = make_carrier("twilio")
    async with carrier, running_gateway({"DATA_DIR": str(tmp_path)}, tmp_path) as url:
        carrier.gateway_url = url
        assert (await carrier.webhook(carrier.new_call())).status == 503


async def test_two_webhooks_at_once_are_one_call(stage: Stage) -> None:
    call = stage.carrier.new_call()
    answers = await asyncio.gather(*(stage.carrier.webhook(call) for _ in range(5)))
    assert len({answer.answer for answer in answers}) == 1
