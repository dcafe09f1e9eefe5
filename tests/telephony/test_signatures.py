import base64

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from gateway.errors import SettingsError, SignatureRejected
from gateway.telephony.signatures import TelnyxVerifier, check_twilio

TOKEN = "0123456789abcdef0123456789abcdef"
URL = "https://voice.example.com/twilio/voice"
FORM = [
    ("AccountSid", "AC00000000000000000000000000000001"),
    ("ApiVersion", "2010-04-01"),
    ("CallSid", "CA00000000000000000000000000000001"),
    ("CallStatus", "ringing"),
    ("Direction", "inbound"),
    ("From", "+14155550100"),
    ("To", "+14155550199"),
]
BODY = b'{"data":{"event_type":"call.hangup"}}'
PUBLIC_KEY = "A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg="
HEADERS = {
    "telnyx-timestamp": "1700000000",
    "telnyx-signature-ed25519": (
        "+HUd2Jh32zctPWKKinzLX5qTGhZLKdvSwr9beaswFfZA+yox8IRwA0CO0mOLR9FguZxL5vBwso0pSd8F7zIfBw=="
    ),
}


def test_twilio_signature_is_accepted() -> None:
    check_twilio(TOKEN, URL, FORM, {"x-twilio-signature": "D2VEII2D3TWeqxtAkJv8VGJ2kwo="})


def test_blank_values_are_signed_too() -> None:
    form = [*FORM, ("CallerName", ""), ("FromCity", "SAN FRANCISCO")]
    check_twilio(TOKEN, URL, form, {"x-twilio-signature": "aRVo1Wazp7fgRbHOTFb7pNuoMFs="})


@pytest.mark.parametrize("headers", [{}, {"x-twilio-signature": "D2VEII2D3TWeqxtAkJv8VGJ2kwp="}])
def test_other_twilio_signature_is_rejected(headers: dict[str, str]) -> None:
    with pytest.raises(SignatureRejected, match="missing or wrong; is PUBLIC_URL the address Twilio calls"):
        check_twilio(TOKEN, URL, FORM, headers)


def test_shared_key_is_not_downgraded() -> None:
    headers = {
        "x-twilio-signature": "D2VEII2D3TWeqxtAkJv8VGJ2kwo=",
        "x-twilio-webhooks-signature-settings": "key=k1,algorithm=HMAC_SHA256",
    }
    with pytest.raises(SignatureRejected, match="shared key"):
        check_twilio(TOKEN, URL, FORM, headers)


def test_settings_without_an_algorithm_mean_the_auth_token() -> None:
    """As Twilio has it: only a named algorithm is a shared key's."""
    headers = {"x-twilio-signature": "D2VEII2D3TWeqxtAkJv8VGJ2kwo=", "x-twilio-webhooks-signature-settings": "key=k1"}
    check_twilio(TOKEN, URL, FORM, headers)


@pytest.mark.parametrize("host", ["voice.example.com:none", "voice.example.com:99999", "[::1"])
def test_host_that_is_none_is_rejected(host: str) -> None:
    with pytest.raises(SignatureRejected):
        check_twilio(TOKEN, f"https://{host}/twilio/voice", FORM, {"x-twilio-signature": "AAAA"})


def test_telnyx_signature_is_accepted() -> None:
    TelnyxVerifier(PUBLIC_KEY).check(BODY, HEADERS, now=1700000010.0)


@pytest.mark.parametrize("now", [1700000301.0, 1699999699.0])
def test_telnyx_timestamp_counts_both_ways(now: float) -> None:
    with pytest.raises(SignatureRejected, match="timestamp"):
        TelnyxVerifier(PUBLIC_KEY).check(BODY, HEADERS, now=now)


@pytest.mark.parametrize("timestamp", ["", "now", "-1700000000", "1700000000.0", "9" * 400, "9" * 5000])
def test_telnyx_timestamp_must_be_one(timestamp: str) -> None:
    headers = {**HEADERS, "telnyx-timestamp": timestamp}
    with pytest.raises(SignatureRejected, match="timestamp"):
        TelnyxVerifier(PUBLIC_KEY).check(BODY, headers, now=1700000000.0)


@pytest.mark.parametrize("signature", ["", "!!!", "AAAA", HEADERS["telnyx-signature-ed25519"][4:]])
def test_other_telnyx_signature_is_rejected(signature: str) -> None:
    headers = {**HEADERS, "telnyx-signature-ed25519": signature}
    with pytest.raises(SignatureRejected, match="missing or wrong"):
        TelnyxVerifier(PUBLIC_KEY).check(BODY, headers, now=1700000000.0)


def test_changed_body_is_rejected() -> None:
    with pytest.raises(SignatureRejected):
        TelnyxVerifier(PUBLIC_KEY).check(BODY + b" ", HEADERS, now=1700000000.0)


def test_wrong_key_tells_the_operator() -> None:
    with pytest.raises(SettingsError, match="TELNYX_PUBLIC_KEY is not a base64 Ed25519 key"):
        TelnyxVerifier("not a key")


def test_other_accounts_key_does_not_open() -> None:
    other = base64.b64encode(Ed25519PrivateKey.generate().public_key().public_bytes_raw()).decode()
    with pytest.raises(SignatureRejected):
        TelnyxVerifier(other).check(BODY, HEADERS, now=1700000000.0)
