"""Messages of Retell, checked against its SDK. tests/web/test_hosted_agents.py has whole calls."""

import json
from datetime import UTC, datetime

import pytest
from retell.lib.webhook_auth import verify

from gateway.errors import RemoteProtocolError, SignatureRejected
from gateway.session import EndReason, Speaker
from gateway.settings import Secret
from gateway.telephony.hosted import Initiation, prompt_variables
from gateway.telephony.retell import Retell
from tests.fakes.retell import AGENT_ID, API_KEY, NUMBER, call_object, signature

CALLER = "+12025550143"
RETELL = Retell(Secret(API_KEY))
NOW = 1760000000.0
BODY = '{"event":"call_inbound","name":"José"}'.encode()
SIGNED = signature(BODY, at=NOW)


def read(event, **fields):
    return RETELL.read(json.dumps({"event": event, **fields}).encode())


def ended(*said, **fields):
    return read("call_ended", call=call_object("call_1", *said, **{"number": CALLER, **fields}))


def check(header, body=BODY, key=API_KEY, now=NOW):
    Retell(Secret(key)).check({"x-retell-signature": header}, body, now=now)


def test_signature_of_the_official_sdk_is_accepted():
    check(SIGNED)
    now = signature(BODY)
    assert verify(BODY.decode(), API_KEY, now)


@pytest.mark.parametrize(
    "header",
    ["", "v=1,d=", SIGNED.upper(), SIGNED[:-1], SIGNED + "0", SIGNED.replace("v=", "v= "), SIGNED.replace("v=1", "v=١"),
     SIGNED.replace("v=1", "v=2"), SIGNED[:-1] + ("0" if SIGNED[-1] != "0" else "1")],
)  # fmt: skip
def test_wrong_signature_is_rejected(header):
    with pytest.raises(SignatureRejected):
        check(header)


def test_another_body_or_key_is_rejected():
    for fields in ({"body": BODY + b" "}, {"key": "other"}):
        with pytest.raises(SignatureRejected):
            check(SIGNED, **fields)
    with pytest.raises(SignatureRejected):
        Retell(None).check({"x-retell-signature": SIGNED}, BODY, now=NOW)


@pytest.mark.parametrize(("after", "accepted"), [(-301, False), (-299, True), (299, True), (301, False)])
def test_signature_is_valid_for_five_minutes(after, accepted):
    try:
        check(SIGNED, now=NOW + after)
    except SignatureRejected:
        assert not accepted
    else:
        assert accepted


def test_inbound_call_is_read():
    call = {"agent_id": AGENT_ID, "from_number": CALLER, "to_number": NUMBER}
    assert read("call_inbound", call_inbound=call) == Initiation(AGENT_ID, CALLER, NUMBER, "")
    assert read("call_inbound", call_inbound=None) == Initiation("", "", "", "")


def test_call_becomes_turns():
    call = call_object("call_1", ("agent", "Hello Ana."), ("user", "Is it ready?"), number=CALLER)
    call |= {"start_timestamp": 1760000000000, "duration_ms": 42500}
    words = {"words": [], "content": "x"}
    call["transcript_object"] += [
        {"role": "transfer_target", **words},
        {"role": "user", "metadata": {"is_backchannel": True}, **words},
        {"role": "agent", "words": None, "content": "Yes."},
        None,
    ]
    found = read("call_analyzed", call=call)
    assert (found.id, found.agent_id, found.number, found.called) == ("call_1", AGENT_ID, CALLER, NUMBER)
    assert (found.started_at, found.seconds) == (datetime.fromtimestamp(1760000000, UTC), 42.5)
    assert found.is_call and found.is_dialled and found.end_reason is EndReason.CALLER_HUNG_UP
    assert [(turn.speaker, turn.text) for turn in found.turns] == [
        (Speaker.AGENT, "Hello Ana."),
        (Speaker.CALLER, "Is it ready?"),
        (Speaker.AGENT, "Yes."),
    ]
    assert (found.turns[1].at - found.started_at).total_seconds() == 2.5


def test_person_of_an_outbound_call_is_the_one_called():
    found = ended(direction="outbound", from_number=NUMBER, to_number=CALLER)
    assert (found.number, found.called) == (CALLER, NUMBER)


def test_web_call_is_known_by_what_the_server_said():
    given = {"metadata": {"user_id": 7, "list": []}, "retell_llm_dynamic_variables": {"user_id": "8", "plan": "gold"}}
    found = ended(number="", **given)
    assert (found.number, found.is_dialled, found.attributes) == ("", False, {"user_id": "7", "plan": "gold"})


@pytest.mark.parametrize(
    ("reason", "expected", "is_call"),
    [
        ("user_hangup", EndReason.CALLER_HUNG_UP, True),
        ("agent_hangup", EndReason.AGENT_HUNG_UP, True),
        ("call_transfer", EndReason.TRANSFERRED, True),
        ("max_duration_reached", EndReason.TIME_LIMIT, True),
        ("manual_stopped", EndReason.OPERATOR_HUNG_UP, True),
        ("error_llm_websocket_open", EndReason.FAILED, True),
        ("dial_busy", EndReason.FAILED, True),
        ("voicemail_reached", EndReason.CALLER_HUNG_UP, False),
        ("ivr_reached", EndReason.CALLER_HUNG_UP, False),
    ],
)
def test_end_reason(reason, expected, is_call):
    found = ended(disconnection_reason=reason)
    assert (found.end_reason, found.is_call) == (expected, is_call)


@pytest.mark.parametrize("given", [None, "soon", -1, 1e300, [], True])
def test_strange_values_are_left_out(given):
    call = {"call_id": "call_1", "start_timestamp": given, "duration_ms": given, "transcript_object": given}
    found = read("call_ended", call=call | {"metadata": given, "from_number": 7})
    assert (found.turns, found.seconds, found.number, found.attributes) == ([], 0.0, "", {})


def test_other_events_need_no_answer():
    for event in ("call_started", "transcript_updated", "transfer_bridged", "chat_inbound", "chat_analyzed", None):
        assert read(event, call={"call_id": "call_1"}) is None
    with pytest.raises(RemoteProtocolError, match="malformed conversation id"):
        read("call_ended", call={"call_id": "../x"})


def test_answer_names_the_agent_only_if_the_number_has_none():
    variables = prompt_variables("Likes tea", "Ana")
    answer = {"dynamic_variables": {"memory": "Likes tea", "caller_name": "Ana"}}
    assert RETELL.answer(Initiation(AGENT_ID, CALLER, NUMBER, ""), AGENT_ID, variables) == {"call_inbound": answer}
    chosen = RETELL.answer(Initiation("", CALLER, NUMBER, ""), AGENT_ID, variables)
    assert chosen == {"call_inbound": {**answer, "override_agent_id": AGENT_ID}}
