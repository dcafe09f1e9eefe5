"""Messages of ElevenLabs, checked against its SDK where that has an opinion."""

import json
from datetime import UTC, datetime

import httpx
import pytest
from elevenlabs.client import ElevenLabs
from elevenlabs.types import GetConversationResponseModel

from gateway.errors import CarrierRefused, RemoteProtocolError, SignatureRejected
from gateway.session import EndReason, Speaker
from gateway.settings import Secret
from gateway.telephony.elevenlabs import (
    ElevenLabsApi,
    SignatureCheck,
    client_data,
    read_conversation,
    read_initiation,
    read_post_call,
)
from tests.fakes.elevenlabs import FakeElevenLabs, conversation, signature

SECRET = "wsec_demo_0123456789"
BODY = b'{"type":"post_call_transcription","event_timestamp":1760000000,"data":{"conversation_id":"conv_demo"}}'
VECTOR = "t=1760000000,v0=f4dca41893fb7c9d7e938f04748d132cf010dd632abcd089ea89a5d829f0bd2f"
NOW = 1760000100.0
CALLER = "+12025550143"

# Signatures


def check_signature(secret: str, body: bytes, header: str, *, now: float) -> None:
    check = SignatureCheck(secret, header, now=now)
    check.update(body)
    check.finish()


@pytest.mark.parametrize(
    "header",
    [
        VECTOR,
        VECTOR.replace(",", " , "),
        ",".join(reversed(VECTOR.split(","))),
        VECTOR.replace("v0=", "v0=00,v0="),
        f"{VECTOR},v1=unknown",
    ],
)
def test_signature_is_accepted(header):
    check_signature(SECRET, BODY, header, now=NOW)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "t=1760000000",
        "v0=" + VECTOR[-64:],
        VECTOR.replace("1760000000", "abc"),
        VECTOR.replace("1760000000", "-1760000000"),
        VECTOR.replace("1760000000", "9" * 30),
        f"t=1759999999,{VECTOR}",
        VECTOR[:-1] + ("0" if VECTOR[-1] != "0" else "1"),
        VECTOR.upper(),
        VECTOR.replace("v0=", "v0=ä"),
    ],
)
def test_signature_is_rejected(header):
    with pytest.raises(SignatureRejected):
        check_signature(SECRET, BODY, header, now=NOW)


@pytest.mark.parametrize(("now", "accepted"), [(-301, False), (-299, True), (1799, True), (1801, False)])
def test_signature_is_valid_for_a_while(now, accepted):
    try:
        check_signature(SECRET, BODY, VECTOR, now=1760000000 + now)
    except SignatureRejected:
        assert not accepted
    else:
        assert accepted


def test_another_body_or_secret_is_rejected():
    for secret, body in ((SECRET, BODY + b" "), ("wsec_other", BODY)):
        with pytest.raises(SignatureRejected):
            check_signature(secret, body, VECTOR, now=NOW)


def test_simulator_signs_as_the_official_sdk_expects():
    event = ElevenLabs(api_key="x").webhooks.construct_event(BODY.decode(), signature(BODY, SECRET), SECRET)
    assert event["data"] == {"conversation_id": "conv_demo"}


# Conversations


def test_conversation_becomes_turns():
    data = conversation(
        "conv_9",
        ("agent", "Hello Ana."),
        ("user", "Is it ready?"),
        number=CALLER,
        metadata={
            "start_time_unix_secs": 1760000000,
            "call_duration_secs": 42,
            "phone_call": {"external_number": CALLER, "agent_number": "+12025550100", "call_sid": "CA9"},
        },
    )
    data["transcript"] += [
        {"role": "agent", "message": None, "time_in_call_secs": 2, "tool_calls": [{"tool_name": "order_status"}]},
        {"role": "agent", "message": "It is ready since", "original_message": "It is ready since noon.",
         "time_in_call_secs": 2, "interrupted": True},
        {"role": "user", "message": "mm-hm", "time_in_call_secs": 3, "ignored_as_backchannel": True},
        {"role": "user", "message": "Thanks.", "time_in_call_secs": 2},
    ]  # fmt: skip
    read = read_conversation(data)
    assert (read.id, read.agent_id, read.number, read.call_id) == ("conv_9", "agent_7k2", CALLER, "CA9")
    assert (read.started_at, read.seconds) == (datetime.fromtimestamp(1760000000, UTC), 42.0)
    assert read.is_call and read.is_dialled and read.end_reason is EndReason.CALLER_HUNG_UP
    assert [(turn.speaker, turn.text, turn.unheard) for turn in read.turns] == [
        (Speaker.AGENT, "Hello Ana.", ""),
        (Speaker.CALLER, "Is it ready?", ""),
        (Speaker.AGENT, "It is ready since", "noon."),
        (Speaker.CALLER, "Thanks.", ""),
    ]
    times = [turn.at for turn in read.turns]
    assert times == sorted(set(times))


@pytest.mark.parametrize("given", ["", "../etc/passwd", None])
def test_malformed_id_is_refused(given):
    with pytest.raises(RemoteProtocolError, match="malformed conversation id"):
        read_conversation(conversation("conv_1") | {"conversation_id": given})


@pytest.mark.parametrize(
    ("metadata", "is_call"),
    [
        ({}, True),
        ({"conversation_initiation_source": "twilio"}, True),
        ({"conversation_initiation_source": "widget"}, True),
        ({"conversation_initiation_source": "react_sdk"}, True),
        ({"conversation_initiation_source": "whatsapp"}, False),
        ({"conversation_initiation_source": "twilio_sms"}, False),
        ({"conversation_initiation_source": "slack_integration"}, False),
        ({"conversation_initiation_source": "template_preview"}, False),
        ({"text_only": True}, False),
        ({"sms": {"x": 1}}, False),
        ({"whatsapp": {"x": 1}}, False),
    ],
)
def test_chat_is_no_call(metadata, is_call):
    assert read_conversation(conversation("conv_1", metadata=metadata)).is_call is is_call


def test_caller_of_a_web_conversation_is_a_claim():
    read = read_conversation(conversation("conv_1", user_id=f"caller:{CALLER}"))
    assert (read.number, read.is_dialled) == (CALLER, False)
    variables = {"dynamic_variables": {"system__caller_id": CALLER, "account": 7, "secret__x": "y"}}
    read = read_conversation(conversation("conv_1", conversation_initiation_client_data=variables))
    assert (read.number, read.is_dialled, read.attributes) == (CALLER, False, {"account": "7"})


@pytest.mark.parametrize(
    ("status", "reason", "expected"),
    [
        ("failed", "", EndReason.FAILED),
        ("done", "end_call tool was called", EndReason.AGENT_HUNG_UP),
        ("done", "Call transferred to +1…", EndReason.TRANSFERRED),
        ("done", "Client disconnected: 1000", EndReason.CALLER_HUNG_UP),
    ],
)
def test_end_reason(status, reason, expected):
    data = conversation("conv_1", status=status, metadata={"termination_reason": reason})
    assert read_conversation(data).end_reason is expected


@pytest.mark.parametrize(
    "fields",
    [
        {"transcript": None},
        {"transcript": [None, 7, {"role": "user"}, {"role": "user", "message": 9}]},
        {"metadata": None},
        {"metadata": {"start_time_unix_secs": "soon", "call_duration_secs": True, "phone_call": []}},
        {"metadata": {"start_time_unix_secs": 1e300}},
        {"conversation_initiation_client_data": {"dynamic_variables": []}},
    ],
)
def test_strange_values_are_left_out(fields):
    assert read_conversation(conversation("conv_1") | fields).turns == []


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b'"x"', b"\xff"])
def test_what_is_no_object_is_refused(body):
    for read in (read_initiation, read_post_call):
        with pytest.raises(RemoteProtocolError):
            read(body)


def test_client_data_holds_no_placeholder():
    data = client_data(memory="Likes {{secret}}\x00 tea", caller_name="Ana", user_id="", call_token="t")
    assert data["dynamic_variables"]["memory"] == "Likes { {secret} } tea"
    assert set(data["dynamic_variables"]) == {"memory", "caller_name", "secret__call_token"}


# Register-call


@pytest.fixture
async def elevenlabs():
    async with FakeElevenLabs().running() as elevenlabs:
        yield elevenlabs


async def register(elevenlabs, key="xi-test-key"):
    data = client_data(memory="Likes tea", caller_name="Ana", user_id=f"caller:{CALLER}", call_token="t")
    async with httpx.AsyncClient(trust_env=False) as http:
        api = ElevenLabsApi(http, elevenlabs.url, Secret(key))
        return await api.register_call("agent_7k2", caller=CALLER, called="+12025550100", data=data, timeout=5.0)


async def test_call_is_registered(elevenlabs):
    document, conversation_id = await register(elevenlabs)
    assert "<Connect>" in document and conversation_id == "conv_1"
    assert elevenlabs.registered[0]["conversation_initiation_client_data"]["dynamic_variables"]["memory"] == "Likes tea"


async def test_refusals_are_reported(elevenlabs):
    from starlette.responses import Response

    with pytest.raises(CarrierRefused, match="status 401"):
        await register(elevenlabs, key="wrong")
    for answer in (Response("not xml"), Response("<Other/>"), Response(status_code=500), Response(json.dumps({}))):
        elevenlabs.answer = answer
        with pytest.raises(CarrierRefused):
            await register(elevenlabs)
    elevenlabs.answer = Response("<Response><Say>Hello</Say></Response>")
    assert await register(elevenlabs) == ("<Response><Say>Hello</Say></Response>", "")


@pytest.mark.parametrize(("result", "is_call"), [("answered", True), ("voicemail", False), (None, True)])
def test_voicemail_is_no_call(result, is_call):
    """What a machine says is not the caller's."""
    data = conversation("conv_1", ("user", "Please leave a message."), number="+12025550143")
    data["metadata"]["phone_call"]["call_result"] = result
    GetConversationResponseModel.model_validate(data)
    assert read_conversation(data).is_call is is_call
