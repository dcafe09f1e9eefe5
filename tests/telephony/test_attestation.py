import pytest

from gateway.telephony import twilio
from gateway.telephony.phone_numbers import Attestation
from gateway.telephony.telnyx import WebhookEvent


def initiated(payload):
    return WebhookEvent("e1", "call.initiated", payload)


@pytest.mark.parametrize(
    ("verstat", "attestation"),
    [
        ("TN-Validation-Passed-A", Attestation.FULL),
        ("TN-Validation-Passed-B", Attestation.PARTIAL),
        ("TN-Validation-Passed-C", Attestation.GATEWAY),
        ("TN-Validation-Passed-A-Diverted", Attestation.PARTIAL),
        ("TN-Validation-Passed-A-Passthrough", Attestation.PARTIAL),
        ("TN-Validation-Passed-A-Whatever-Comes-Next", Attestation.PARTIAL),
        ("TN-Validation-Passed-C-Diverted", Attestation.GATEWAY),
        ("TN-Validation-Failed-A", Attestation.FAILED),
        ("TN-Validation-Failed-C-Passthrough", Attestation.FAILED),
        ("TN-Validation-Failed", Attestation.FAILED),
        ("tn-validation-failed", Attestation.FAILED),
        ("TN-Validation-Passed", Attestation.NONE),
        ("No-TN-Validation", Attestation.NONE),
        ("NULL", Attestation.NONE),
        ("", Attestation.NONE),
        ("xTN-Validation-Passed-A", Attestation.NONE),
    ],
)
def test_twilio_verdict_is_read(verstat, attestation):
    assert twilio.attestation({"StirVerstat": verstat}) is attestation


def test_twilio_call_without_verdict_has_none():
    assert twilio.attestation({}) is Attestation.NONE


@pytest.mark.parametrize(
    ("level", "validated", "attestation"),
    [
        ("A", True, Attestation.FULL),
        ("B", True, Attestation.PARTIAL),
        ("C", True, Attestation.GATEWAY),
        ("a", True, Attestation.FULL),
        ("A", False, Attestation.FAILED),
        ("C", False, Attestation.FAILED),
        ("A", None, Attestation.NONE),
        ("A", "yes", Attestation.NONE),
        (None, False, Attestation.NONE),
        (None, True, Attestation.NONE),
        ("", True, Attestation.NONE),
        ("D", True, Attestation.NONE),
        (["A"], True, Attestation.NONE),
    ],
)
def test_telnyx_verdict_is_read(level, validated, attestation):
    payload = {"shaken_stir_attestation": level, "shaken_stir_validated": validated}
    assert initiated(payload).attestation is attestation


def test_header_that_claims_a_verdict_is_not_believed():
    """The calling party writes the SIP headers."""
    claimed = "<sip:+12025550143@example.com;verstat=TN-Validation-Passed>"
    assert initiated({"custom_headers": [{"name": "P-Asserted-Identity", "value": claimed}]}).attestation is (
        Attestation.NONE
    )
    assert twilio.attestation({"SipHeader_X-Verstat": "TN-Validation-Passed-A"}) is Attestation.NONE


def test_both_carriers_sip_headers_read_alike():
    form = {"From": "sip:desk@example.com", "SipHeader_X-Customer-Id": "8812", "SipHeader_User-to-User": "0064"}
    payload = {
        "custom_headers": [{"name": "X-Customer-Id", "value": "8812"}],
        "sip_headers": [{"name": "User-to-User", "value": "0064"}],
    }
    expected = {"x-customer-id": "8812", "user-to-user": "0064"}
    assert twilio.sip_headers(form) == initiated(payload).sip_headers == expected


def test_odd_sip_headers_are_left_out():
    odd = ["X-Customer-Id: 1", {"name": "X-Customer-Id"}, {"name": "X-A", "value": None}, {"value": "1"}, None]
    assert initiated({"custom_headers": odd, "sip_headers": None}).sip_headers == {}
    assert initiated({}).sip_headers == {}
