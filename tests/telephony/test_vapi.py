"""Messages of Vapi. tests/web/test_hosted_agents.py has whole calls."""

import json
from datetime import UTC, datetime

import pytest

from gateway.errors import RemoteProtocolError, SignatureRejected
from gateway.session import EndReason, Speaker
from gateway.settings import Secret
from gateway.telephony.hosted import Initiation, prompt_variables
from gateway.telephony.vapi import Vapi
from tests.fakes.vapi import ASSISTANT_ID, NUMBER, SECRET, call_object, end_of_call

CALLER = "+12025550143"
VAPI = Vapi(Secret(SECRET))


def read(message):
    return VAPI.read(json.dumps({"message": message}).encode())


@pytest.mark.parametrize(
    "headers",
    [{"x-vapi-secret": SECRET}, {"authorization": f"Bearer {SECRET}"}, {"authorization": f"bearer  {SECRET} "}],
)
def test_secret_is_accepted(headers):
    VAPI.check(headers, b"", now=0.0)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"x-vapi-secret": ""},
        {"x-vapi-secret": "ä"},
        {"authorization": SECRET},
        {"authorization": f"Basic {SECRET}"},
    ],
)
def test_wrong_secret_is_rejected(headers):
    with pytest.raises(SignatureRejected):
        VAPI.check(headers, b"", now=0.0)
    with pytest.raises(SignatureRejected):
        Vapi(None).check(headers, b"", now=0.0)


def test_request_names_caller_and_number():
    message = {"type": "assistant-request", "call": call_object("call-1", CALLER), "phoneNumber": {"number": NUMBER}}
    assert read(message) == Initiation("", CALLER, NUMBER, "call-1")
    customer = message | {"customer": {"number": "+12025550188"}}
    assert read(customer) == Initiation("", "+12025550188", NUMBER, "call-1")


@pytest.mark.parametrize(
    "fields",
    [
        {"customer": {"number": CALLER, "sipUri": "sip:ana@example.com"}},
        {"phoneNumber": {"number": NUMBER, "sipUri": "sip:maya@sip.vapi.ai"}},
        {"call": call_object("call-1", CALLER, "webCall")},
    ],
)
def test_number_without_a_carrier_is_a_claim(fields):
    request = {"type": "assistant-request", "call": call_object("call-1", CALLER), **fields}
    assert read(request).caller == ""
    report = read(end_of_call("call-1", number=CALLER) | fields)
    assert (report.number, report.is_dialled) == (CALLER, False)


def test_report_becomes_turns():
    message = end_of_call(
        "call-1", ("bot", "Hello Ana."), ("user", "Is it ready?"), ("assistant", "Yes."), number=CALLER
    )
    message |= {"startedAt": "2026-02-06T12:00:00.000Z", "endedAt": "2026-02-06T14:00:42.500+02:00"}
    message["artifact"]["messages"] += [{"role": "tool_calls", "message": "x"}, {"role": "user", "message": None}, 7]
    found = read(message)
    assert (found.id, found.agent_id, found.number, found.called) == ("call-1", ASSISTANT_ID, CALLER, NUMBER)
    assert (found.started_at, found.seconds) == (datetime(2026, 2, 6, 12, tzinfo=UTC), 42.5)
    assert found.is_call and found.is_dialled and found.end_reason is EndReason.CALLER_HUNG_UP
    assert [(turn.speaker, turn.text) for turn in found.turns] == [
        (Speaker.AGENT, "Hello Ana."),
        (Speaker.CALLER, "Is it ready?"),
        (Speaker.AGENT, "Yes."),
    ]
    assert (found.turns[1].at - found.started_at).total_seconds() == 2.5


def test_external_id_may_identify_the_caller():
    call = call_object("call-1", "", "webCall", customer={"externalId": "user-7"})
    assert read(end_of_call("call-1", call=call)).attributes == {"user_id": "user-7"}


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("customer-ended-call", EndReason.CALLER_HUNG_UP),
        ("customer-ended-call-during-transfer", EndReason.CALLER_HUNG_UP),
        ("assistant-ended-call", EndReason.AGENT_HUNG_UP),
        ("assistant-said-end-call-phrase", EndReason.AGENT_HUNG_UP),
        ("silence-timed-out", EndReason.AGENT_HUNG_UP),
        ("assistant-forwarded-call", EndReason.TRANSFERRED),
        ("exceeded-max-duration", EndReason.TIME_LIMIT),
        ("assistant-request-failed", EndReason.FAILED),
        ("call.in-progress.error-vapifault-worker-died", EndReason.FAILED),
        ("one that is new", EndReason.CALLER_HUNG_UP),
    ],
)
def test_end_reason(reason, expected):
    assert read(end_of_call("call-1", endedReason=reason)).end_reason is expected


def test_voicemail_is_no_call():
    assert not read(end_of_call("call-1", endedReason="voicemail")).is_call


@pytest.mark.parametrize("given", ["soon", None, 7, "0001-01-01T00:00:00+23:00", "9999-12-31T23:59:59Z"])
def test_strange_values_are_left_out(given):
    call = call_object("call-1", CALLER, createdAt=given)
    message = end_of_call("call-1", call=call, startedAt=given, endedAt=given, artifact=given, phoneNumber=given)
    found = read(message)
    assert (found.turns, found.seconds, found.called) == ([], 0.0, "")


def test_other_messages_need_no_answer():
    assert read({"type": "status-update", "call": {"id": "call-1"}}) is None
    assert read({"type": "end-of-call-report", "chat": {"id": "chat-1"}}) is None
    assert VAPI.read(b"{}") is None
    with pytest.raises(RemoteProtocolError, match="malformed conversation id"):
        read(end_of_call("../x"))


def test_answer_selects_the_assistant():
    asked, variables = Initiation("", CALLER, NUMBER, "call-1"), prompt_variables("Likes tea", "Ana")
    assert VAPI.answer(asked, ASSISTANT_ID, variables) == {
        "assistantId": ASSISTANT_ID,
        "assistantOverrides": {"variableValues": {"memory": "Likes tea", "caller_name": "Ana"}},
    }
    assert VAPI.answer(asked, "", variables) is None
