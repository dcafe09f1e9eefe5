from pathlib import Path

import pytest

from tests.stage import SOUND, Stage, make_carrier, running_gateway, staged, until


@pytest.fixture
async def stage(tmp_path: Path):
    async with staged(tmp_path, make_carrier("telnyx")) as stage:
        yield stage


def commands(stage: Stage) -> list[str]:
    return [command.action for command in stage.carrier.commands]


@pytest.mark.parametrize(
    "forgery",
    [
        {"signature": "wrong"},
        {"signature": "none"},
        {"age": 400},
        {"age": -400},
        {"body": b"{}"},
    ],
)
async def test_forged_webhook_is_refused(stage: Stage, forgery: dict) -> None:
    answer = await stage.carrier.webhook(stage.carrier.new_call(), "call.initiated", **forgery)
    assert answer.status == 403
    assert commands(stage) == []


async def test_signed_nonsense_is_refused(stage: Stage) -> None:
    answer = await stage.carrier.webhook(stage.carrier.new_call(), "call.initiated", signed_body=b"[]")
    assert answer.status == 400


async def test_repeated_event_answers_once(stage: Stage) -> None:
    stage.carrier.repeats = "together"
    call, conversation = await stage.dial()
    assert commands(stage) == ["answer"]
    await call.hang_up()
    await conversation.wait_closed()


async def test_outgoing_leg_is_left_alone(stage: Stage) -> None:
    call = stage.carrier.new_call()
    answer = await stage.carrier.webhook(call, "call.initiated", payload={"direction": "outgoing", "state": "bridging"})
    assert answer.status == 200
    _, conversation = await stage.dial()
    assert commands(stage) == ["answer"]
    assert conversation.settings


async def test_hangup_before_the_ring_is_remembered(stage: Stage) -> None:
    call = stage.carrier.new_call()
    await stage.carrier.webhook(call, "call.hangup")
    await stage.carrier.webhook(call, "call.initiated")
    _, conversation = await stage.dial("+12025550144")
    assert conversation.settings
    assert commands(stage) == ["answer"]


async def test_refused_caller_is_rejected_by_command(tmp_path: Path) -> None:
    async with staged(tmp_path, make_carrier("telnyx"), ALLOWED_CALLERS="") as stage:
        call = await stage.carrier.dial()
        assert call.rejected
        [reject] = stage.carrier.commands
        assert reject.action == "reject"
        assert reject.body["cause"] == "CALL_REJECTED"


async def test_lost_answer_is_repeated_with_its_id(stage: Stage) -> None:
    stage.carrier.fail("answer", status=500, takes_effect=True)
    _, conversation = await stage.dial()
    await until(lambda: len(commands(stage)) == 2)
    assert len({command.body["command_id"] for command in stage.carrier.commands}) == 1
    assert conversation.settings


async def test_stopped_stream_of_a_live_call_is_restarted(stage: Stage) -> None:
    """`stop` ends the stream, not the call: the caller is asked for again, and never left in billed silence."""
    call, conversation = await stage.dial()
    await conversation.user_says("Are you there?")
    await call.stop_stream(call.stream)
    await call.wait_stream(2)
    again = await stage.engine.next_conversation()
    assert (await again.configured())["agent"]["context"]["messages"][-1]["content"] == "Are you there?"
    assert commands(stage) == ["answer", "read", "streaming_start"]
    await call.hang_up()
    await stage.document()


async def test_late_word_of_an_old_stream_ends_nothing(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("Are you there?")
    old = call.media_url
    await call.drop()
    await call.wait_stream(2)
    again = await stage.engine.next_conversation()
    await again.configured()
    for event, payload in (
        ("streaming.stopped", {"stream_url": old}),
        ("streaming.failed", {"stream_params": {"stream_url": old}}),
    ):
        await stage.carrier.webhook(call, event, payload=payload)
    await call.speak(SOUND * 50)
    await again.hears(len(SOUND) * 50)
    await again.user_says("Still here.")
    await call.hang_up()
    assert (await stage.archive()).endswith("CALLER: Still here.\n")
    assert len(call.streams) == 2


async def test_stream_that_fails_to_open_is_restarted(stage: Stage) -> None:
    call = await stage.carrier.ring()
    await stage.carrier.webhook(call, "streaming.failed", payload={"failure_reason": "connection_failed"})
    await until(lambda: "streaming_start" in commands(stage))
    await call.hang_up()


async def test_refused_new_stream_hangs_up(stage: Stage) -> None:
    call, conversation = await stage.dial()
    await conversation.user_says("Are you there?")
    stage.carrier.fail("streaming_start", status=422, code="90046", times=9)
    await call.stop_stream(call.stream)
    await call.over(10)
    assert call.ended_by == "gateway-rest"
    assert (await stage.archive()).endswith("CALLER: Are you there?\n")


async def test_a_law_leg_is_heard_as_mu_law(tmp_path: Path) -> None:
    carrier = make_carrier("telnyx")
    async with staged(tmp_path, carrier) as stage:
        carrier.leg_codec, carrier.insist_on_leg_codec = "PCMA", True
        call, conversation = await stage.dial()
        await call.speak(b"\xd5" * 160)
        await conversation.hears(160)
        assert set(conversation.heard[:160]) <= {0xFF, 0x7F, 0xFE, 0x7E}
        await call.hang_up()


async def test_unknown_codec_ends_the_call(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """At once: another stream would be no better, and the caller is not kept in silence."""
    carrier = make_carrier("telnyx")
    async with staged(tmp_path, carrier) as stage:
        carrier.leg_codec, carrier.insist_on_leg_codec = "OPUS", True
        call = await stage.carrier.dial()
        await call.over(10)
        assert stage.engine.conversations == []
        assert commands(stage) == ["answer", "hangup"]
        assert "telnyx streams 'OPUS', expected 'PCMU'" in [
            f"{getattr(r, 'carrier', '')} {getattr(r, 'problem', '')}" for r in caplog.records
        ]


async def test_swapped_media_is_heard_in_order(stage: Stage) -> None:
    stage.carrier.swap_neighbours = True
    call, conversation = await stage.dial()
    spoken = b"".join(bytes([number]) * 160 for number in range(1, 21))
    await call.speak(spoken)
    await conversation.hears(len(spoken))
    assert bytes(conversation.heard).startswith(spoken)
    await call.hang_up()


async def test_unasked_second_upgrade_is_refused(stage: Stage) -> None:
    call, conversation = await stage.dial()
    second = await stage.carrier.connect(call, token=call.token)
    await second.send_json(stage.carrier.start_message(call, stream_id=second.stream_id))
    assert await second.wait_closed() == 1008
    await call.speak(SOUND)
    await conversation.hears(len(SOUND))
    await call.hang_up()


async def test_without_keys_telnyx_is_not_served(tmp_path: Path) -> None:
    carrier = make_carrier("telnyx")
    async with carrier, running_gateway({"DATA_DIR": str(tmp_path)}, tmp_path) as url:
        carrier.gateway_url = url
        assert (await carrier.webhook(carrier.new_call(), "call.initiated")).status == 503


async def test_stream_token_is_never_logged(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "gateway")
    call, _ = await stage.dial()
    await call.hang_up()
    await stage.idle()
    assert call.token
    assert not [record for record in caplog.records if call.token in str(vars(record))]
