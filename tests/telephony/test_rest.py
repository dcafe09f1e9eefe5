import asyncio
import contextlib
import socket
from contextlib import asynccontextmanager

import httpx
import pytest

from gateway.errors import CarrierRefused, NumberNotAllowed, StreamInUse
from gateway.metrics import REGISTRY
from gateway.settings import Secret
from gateway.telephony.machine_detection import MachineDetection
from gateway.telephony.phone_numbers import DialingRules
from gateway.telephony.rest import DialLimits, TelnyxControl, TwilioControl
from gateway.telephony.telnyx import read_webhook
from gateway.telephony.twilio import picked_up, was_put_through
from tests.fakes.telnyx import FakeTelnyx
from tests.fakes.twilio import FakeTwilio

STREAM = "wss://voice.example.com/telnyx/media?token=t"
TARGET = "+12025550177"


@pytest.fixture
async def http():
    async with httpx.AsyncClient(trust_env=False) as http:
        yield http


@pytest.fixture
async def twilio():
    # Its webhooks go nowhere; only REST is looked at here.
    async with FakeTwilio("http://127.0.0.1:9", "https://voice.example.com") as twilio:
        yield twilio


@pytest.fixture
async def telnyx():
    async with FakeTelnyx("http://127.0.0.1:9", "https://voice.example.com") as telnyx:
        yield telnyx


ANYWHERE = DialLimits(DialingRules({"*"}))


def twilio_control(http, twilio, *, api_url="", token="", limits=ANYWHERE):
    secret = Secret(token or twilio.auth_token)
    url, account = api_url or twilio.api_url, twilio.account_sid
    return TwilioControl(http, api_url=url, account_sid=account, auth_token=secret, limits=limits)


def telnyx_control(http, telnyx, *, api_url="", key="", limits=ANYWHERE):
    secret, url = Secret(key or telnyx.api_key), api_url or telnyx.api_url
    return TelnyxControl(http, api_url=url, api_key=secret, limits=limits, hang_up_pauses=(0.0,) * 4)


def control_of(carrier, http, **options):
    make = twilio_control if carrier.name == "twilio" else telnyx_control
    return make(http, carrier, **options)


@pytest.fixture
def carrier(carrier_name, request):
    return request.getfixturevalue(carrier_name)


HANG_UP = {"twilio": "update", "telnyx": "hangup"}
NAMED = {"twilio": "hang-up", "telnyx": "hangup"}


@asynccontextmanager
async def carrier_that_drops(times):
    """A server that takes a request and closes without a word, so many times; then it says yes."""
    requests = []

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        requests.append(await reader.readexactly(size))
        if len(requests) > times:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}")
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", requests
    finally:
        server.close()


def nobodys_url():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"http://127.0.0.1:{listener.getsockname()[1]}"


# Hanging up, on both carriers


async def test_hang_up_ends_the_call(carrier, http):
    call = carrier.new_call()
    await control_of(carrier, http).hang_up(call.id)
    await call.over()
    assert [(command.action, command.status) for command in carrier.commands] == [(HANG_UP[carrier.name], 200)]


async def test_call_that_is_over_is_a_success(carrier, http):
    call = carrier.new_call()
    call.end("caller")
    await control_of(carrier, http).hang_up(call.id)
    assert len(carrier.commands) == 1


async def test_unknown_call_counts_as_over(carrier, http):
    await control_of(carrier, http).hang_up("nobody")
    assert len(carrier.commands) == 1


async def test_twilios_other_word_for_over_is_a_success(twilio, http):
    twilio.finished_status = 400
    call = twilio.new_call()
    call.end("caller")
    await twilio_control(http, twilio).hang_up(call.id)
    assert [command.status for command in twilio.commands] == [400]


async def test_wrong_credentials_are_refused_at_once(carrier, http):
    wrong = {"token": "hunter2"} if carrier.name == "twilio" else {"key": "hunter2"}
    with pytest.raises(CarrierRefused) as raised:
        await control_of(carrier, http, **wrong).hang_up(carrier.new_call().id)
    code = {"twilio": "20003", "telnyx": "10009"}[carrier.name]
    assert str(raised.value) == f"{carrier.name} refused {NAMED[carrier.name]}: status 401, code {code}"
    assert not raised.value.retryable
    assert len(carrier.commands) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_passing_fault_is_tried_again(carrier, http, status):
    carrier.fail(HANG_UP[carrier.name], status=status)
    call = carrier.new_call()
    await control_of(carrier, http).hang_up(call.id)
    assert [command.status for command in carrier.commands] == [status, 200]


async def test_lasting_fault_is_given_up(carrier, http):
    carrier.fail(HANG_UP[carrier.name], status=503, times=9)
    with pytest.raises(CarrierRefused) as raised:
        await control_of(carrier, http).hang_up(carrier.new_call().id)
    assert (raised.value.status, raised.value.retryable) == (503, True)
    # A Twilio call ends with its socket too, a Telnyx one by this alone.
    assert len(carrier.commands) == {"twilio": 3, "telnyx": 5}[carrier.name]


async def test_lost_answer_is_tried_again(carrier, http):
    async with carrier_that_drops(1) as (url, requests):
        await control_of(carrier, http, api_url=url).hang_up("call-1")
    assert len(requests) == 2
    assert requests[0] == requests[1]


async def test_unreachable_carrier_is_said_so(carrier, http):
    with pytest.raises(CarrierRefused) as raised:
        await control_of(carrier, http, api_url=nobodys_url()).hang_up("call-1")
    message = f"{carrier.name} refused {NAMED[carrier.name]}: status 0, code ConnectError"
    assert (str(raised.value), raised.value.retryable) == (message, True)


# Whether the caller is still there, on both carriers


async def test_carrier_tells_who_is_there(carrier, http):
    call = answered_call(carrier)
    assert await control_of(carrier, http).is_alive(call.id) is True
    call.end("caller")
    call.status = "completed"
    assert await control_of(carrier, http).is_alive(call.id) is False
    assert await control_of(carrier, http).is_alive("nobody") is False


async def test_carrier_that_does_not_say_is_not_guessed_at(carrier, http):
    carrier.fail("read", status=500)
    assert await control_of(carrier, http).is_alive(answered_call(carrier).id) is None
    assert await control_of(carrier, http, api_url=nobodys_url()).is_alive("call-1") is None


# Putting the caller through, on both carriers


TRANSFER = {"twilio": "update", "telnyx": "transfer"}


def answered_call(carrier):
    call = carrier.new_call()
    call.answered, call.status = True, "in-progress"
    call.opens_media = False
    return call


async def put_through(carrier, http, call, target=TARGET, **options):
    media_url = f"wss://voice.example.com/{carrier.name}/media"
    control = control_of(carrier, http, **options)
    await control.transfer(call.id, target, caller_id=call.called, media_url=media_url)
    await call.until(lambda: call.leg_b is not None, "second leg")


def told_of_leg_b(carrier, event):
    """What our side reads from the first webhook of this kind about the other leg: the call it was made for."""
    sent = next(sent for sent in carrier.sent(event) if sent.call_id == carrier.calls[1].id)
    return picked_up(sent.body) if carrier.name == "twilio" else read_webhook(sent.body.encode()).transfer_of


ANSWERED = {"twilio": "answered", "telnyx": "call.answered"}


@pytest.mark.parametrize("target", [TARGET, "sip:desk@pbx.example.net"])
async def test_transfer_calls_the_other_side(carrier, http, target):
    call = answered_call(carrier)
    await put_through(carrier, http, call, target)
    await call.until(lambda: call.put_through and carrier.sent(ANSWERED[carrier.name]))
    assert (call.leg_b.called, call.leg_b.caller) == (target, call.called)
    assert told_of_leg_b(carrier, ANSWERED[carrier.name]) == call.id
    assert call.ended_by == ""


@pytest.mark.parametrize(
    ("seconds", "dialled", "transferred"),
    [(600, (660, 660), (600, 600)), (20, (80, 80), (60, 60)), (0, (86400, 14400), (86400, 14400))],
)
async def test_carrier_ends_a_call_that_lasts_too_long(carrier, http, seconds, dialled, transferred):
    """After the gateway itself would have, which says a sentence first."""
    is_telnyx = carrier.name == "telnyx"
    limits = DialLimits(DialingRules(), seconds)
    await put_through(carrier, http, answered_call(carrier), limits=limits)
    order = {
        "caller_id": "+12025550100",
        "order_id": "o1",
        "media_url": f"wss://voice.example.com/{carrier.name}/media",
        "detection": MachineDetection.OFF,
    }
    await control_of(carrier, http, limits=limits).dial(TARGET, **order)
    [transfer] = [command for command in carrier.commands if command.action == TRANSFER[carrier.name]]
    [dial] = [
        command
        for command in carrier.commands
        if command.action == {"telnyx": "dial", "twilio": "create"}[carrier.name]
    ]
    if is_telnyx:
        given = (transfer.body["time_limit_secs"], dial.body["time_limit_secs"])
    else:
        assert f'timeLimit="{transferred[0]}"' in transfer.body["Twiml"]
        given = (transferred[0], int(dial.body["TimeLimit"]))
    assert given == (transferred[is_telnyx], dialled[is_telnyx])


@pytest.mark.parametrize("target", ["+19005550100", "+881612345678", "+442079460123"])
async def test_carrier_is_not_asked_for_a_number_that_is_not_allowed(carrier, http, target):
    before = refused(carrier)
    with pytest.raises(NumberNotAllowed):
        await put_through(carrier, http, answered_call(carrier), target, limits=DialLimits())
    assert (carrier.commands, refused(carrier)) == ([], before + 1)


def refused(carrier):
    labels = {"carrier": carrier.name, "reason": "number not allowed"}
    return REGISTRY.get_sample_value("voice_gateway_refused_calls_total", labels) or 0


@pytest.mark.parametrize("outcome", ["busy", "no-answer"])
async def test_twilio_asks_what_to_do_when_nobody_comes(twilio, http, outcome):
    twilio.callee = outcome
    call = answered_call(twilio)
    await put_through(twilio, http, call)
    await call.until(lambda: twilio.sent("action"), "action")
    asked = twilio.sent("action")[0]
    assert (asked.url, asked.body["CallSid"]) == ("https://voice.example.com/twilio/resume", call.id)
    assert (asked.body["CallStatus"], asked.body["DialCallStatus"]) == ("in-progress", outcome)
    assert not was_put_through(asked.body)
    assert twilio.sent("answered") == []


@pytest.mark.parametrize("outcome", ["busy", "no-answer"])
async def test_telnyx_leaves_the_caller_when_nobody_comes(telnyx, http, outcome):
    telnyx.callee = outcome
    call = answered_call(telnyx)
    await put_through(telnyx, http, call)
    await call.leg_b.over()
    assert told_of_leg_b(telnyx, "call.hangup") == call.id
    assert (call.abandoned, telnyx.sent("call.answered")) == (True, [])
    await telnyx_control(http, telnyx).restart_stream(call.id, stream_url=STREAM, replaces=True)
    assert telnyx.commands[-1].status == 200


async def test_telnyx_is_asked_for_each_new_stream_by_another_id(telnyx, http):
    """Also by a gateway that died and does not know how often it was asked: the same id would be ignored."""
    call = answered_call(telnyx)
    for token in ("first", "first", "second"):
        with contextlib.suppress(CarrierRefused):  # the fake has a stream already; what was asked counts
            await telnyx_control(http, telnyx).restart_stream(call.id, stream_url=f"{STREAM}{token}", replaces=False)
    asked = [command.body["command_id"] for command in telnyx.commands if command.action == "streaming_start"]
    assert asked[0] == asked[1] != asked[-1]
    assert "first" not in asked[0]


async def test_telnyx_stream_that_is_dead_is_replaced(telnyx, http):
    """Telnyx has not noticed that its socket is gone, and refuses a second stream beside it (90045)."""
    call = answered_call(telnyx)
    telnyx.fail("streaming_start", status=422, code="90045", times=2)
    await telnyx_control(http, telnyx).restart_stream(call.id, stream_url=STREAM, replaces=True)
    asked = [(command.action, command.body["command_id"]) for command in telnyx.commands]
    assert [action for action, _ in asked] == [
        "streaming_start",
        "streaming_stop",
        "streaming_start",
        "streaming_start",
    ]
    assert len({command_id for _, command_id in asked}) == 4
    assert telnyx.commands[-1].status == 200


async def test_telnyx_stream_that_may_live_is_left_alone(telnyx, http):
    call = answered_call(telnyx)
    telnyx.fail("streaming_start", status=422, code="90045")
    with pytest.raises(StreamInUse):
        await telnyx_control(http, telnyx).restart_stream(call.id, stream_url=STREAM, replaces=False)
    assert [command.action for command in telnyx.commands] == ["streaming_start"]


async def test_call_after_the_transfer_is_over(carrier, http):
    """The other side hangs up: Twilio requests instructions, Telnyx ends the call itself."""
    call = answered_call(carrier)
    await put_through(carrier, http, call)
    await call.until(lambda: call.put_through)
    await call.leg_b.hang_up()
    await call.over()
    if carrier.name == "twilio":
        assert was_put_through(carrier.sent("action")[0].body)
    else:
        assert carrier.sent("call.hangup")[-1].call_id == call.id


@pytest.mark.parametrize(("status", "code"), [(400, "21218"), (503, "20500")])
async def test_refused_transfer_names_no_number(carrier, http, status, code):
    carrier.fail(TRANSFER[carrier.name], status=status, code=code, times=9)
    with pytest.raises(CarrierRefused) as raised:
        await put_through(carrier, http, answered_call(carrier))
    assert str(raised.value) == f"{carrier.name} refused transfer: status {status}, code {code}"
    assert {command.action for command in carrier.commands} == {TRANSFER[carrier.name]}


async def test_call_that_is_over_is_not_transferred(carrier, http):
    call = answered_call(carrier)
    call.end("caller")
    with pytest.raises(CarrierRefused) as raised:
        await put_through(carrier, http, call)
    assert raised.value.code == {"twilio": "20404", "telnyx": "90018"}[carrier.name]


async def test_lost_answer_does_not_ring_twilios_twice(twilio, http):
    async with carrier_that_drops(1) as (url, requests):
        with pytest.raises(CarrierRefused) as raised:
            await put_through(twilio, http, answered_call(twilio), api_url=url)
    assert (len(requests), raised.value.retryable) == (1, True)


async def test_repeated_transfer_rings_telnyxs_once(telnyx, http):
    telnyx.fail("transfer", status=500, takes_effect=True)
    call = answered_call(telnyx)
    await put_through(telnyx, http, call)
    first, again, stop = telnyx.commands
    assert first.body == again.body
    assert (stop.action, len(telnyx.calls)) == ("streaming_stop", 2)


async def test_second_transfer_is_not_taken_for_the_first(telnyx, http):
    telnyx.callee = "busy"
    call = answered_call(telnyx)
    for _ in range(2):
        await put_through(telnyx, http, call)
        await call.leg_b.over()
    assert len(telnyx.calls) == 3


async def test_transfer_holds_though_the_stream_does_not_stop(telnyx, http):
    telnyx.fail("streaming_stop", status=400, code="10015")
    call = answered_call(telnyx)
    await put_through(telnyx, http, call)
    await call.until(lambda: call.put_through)


# Telnyx alone


async def test_answer_starts_the_stream(telnyx, http):
    call = telnyx.new_call()
    call.opens_media = False
    await telnyx_control(http, telnyx).answer(call.id, stream_url=STREAM, command_key="k1")
    (command,) = telnyx.commands
    assert (command.action, command.body["command_id"]) == ("answer", "answer-k1")
    assert command.body["stream_url"] == STREAM


async def test_reject_says_why(telnyx, http):
    call = telnyx.new_call()
    await telnyx_control(http, telnyx).reject(call.id, command_key="k1")
    (command,) = telnyx.commands
    assert (command.action, command.body) == ("reject", {"cause": "CALL_REJECTED", "command_id": "reject-k1"})
    assert call.rejected


async def test_repeated_command_keeps_its_id(telnyx, http):
    """The first try took effect though its answer was an error; Telnyx knows the second by its id."""
    telnyx.fail("answer", status=500, takes_effect=True)
    call = telnyx.new_call()
    call.opens_media = False
    await telnyx_control(http, telnyx).answer(call.id, stream_url=STREAM, command_key="k1")
    assert [command.body["command_id"] for command in telnyx.commands] == ["answer-k1", "answer-k1"]
    assert [command.status for command in telnyx.commands] == [500, 200]


async def test_refused_answer_names_the_code(telnyx, http):
    telnyx.fail("answer", status=422, code="10015")
    with pytest.raises(CarrierRefused) as raised:
        await telnyx_control(http, telnyx).answer(telnyx.new_call().id, stream_url=STREAM, command_key="k1")
    assert str(raised.value) == "telnyx refused answer: status 422, code 10015"
    assert not raised.value.retryable


@pytest.mark.parametrize("command", ["answer", "reject"])
async def test_wrong_address_is_a_refusal(telnyx, http, command):
    control = telnyx_control(http, telnyx, api_url=telnyx.api_url.replace("/v2", "/v3"))
    options = {"stream_url": STREAM} if command == "answer" else {}
    with pytest.raises(CarrierRefused) as raised:
        await getattr(control, command)(telnyx.new_call().id, command_key="k1", **options)
    assert (raised.value.status, raised.value.retryable) == (404, False)


async def test_call_ids_are_quoted(telnyx, http):
    call = telnyx.new_call()
    call.id = "v3:a?b=c#d e"
    await telnyx_control(http, telnyx).hang_up(call.id)
    await call.over()
    assert [command.call_id for command in telnyx.commands] == [call.id]


async def test_stop_ends_a_twilio_call_only(twilio, telnyx, http):
    assert twilio_control(http, twilio).stop_ends_call
    assert not telnyx_control(http, telnyx).stop_ends_call


@pytest.mark.parametrize(
    ("detection", "by_twilio", "by_telnyx"),
    [
        (MachineDetection.OFF, None, None),
        (MachineDetection.MACHINE, "Enable", "detect"),
        (MachineDetection.GREETING_END, "DetectMessageEnd", "greeting_end"),
    ],
)
async def test_machines_are_detected_beside_the_call(carrier, http, detection, by_twilio, by_telnyx):
    url = f"wss://voice.example.com/{carrier.name}/media"
    own = "+12025550100"
    await control_of(carrier, http).dial(TARGET, caller_id=own, order_id="o1", media_url=url, detection=detection)
    [dial] = [command.body for command in carrier.commands if command.action in ("dial", "create")]
    if carrier.name == "telnyx":
        assert dial.get("answering_machine_detection") == by_telnyx
    else:
        assert (dial.get("MachineDetection"), dial.get("AsyncAmd")) == (by_twilio, by_twilio and "true")
        assert dial.get("AsyncAmdStatusCallback") in (None, "https://voice.example.com/twilio/status?order=o1")
