"""Login sessions, sealed parameters, throttling and guest links, without a browser."""

import pytest

from gateway.settings import Secret
from gateway.web.login import (
    ATTEMPT_SECONDS,
    MAX_ATTEMPTS,
    SESSION_SECONDS,
    LoginThrottle,
    SealedParam,
    SessionCodec,
)
from gateway.web.softphone import GuestLink, TokenCodec, WatchToken

NOW = 1_770_000_000.0
SESSIONS = SessionCodec(Secret("token"))


def test_session_is_valid_until_it_expires():
    session = SESSIONS.issue(NOW)
    assert SESSIONS.read(session.cookie, NOW + SESSION_SECONDS - 1) == session
    assert SESSIONS.read(session.cookie, NOW + SESSION_SECONDS + 1) is None


def test_other_nodes_with_the_token_accept_it():
    session = SESSIONS.issue(NOW)
    assert SessionCodec(Secret("token")).read(session.cookie, NOW) == session
    assert SessionCodec(Secret("another")).read(session.cookie, NOW) is None


def test_session_can_not_be_prolonged():
    _, _, rest = SESSIONS.issue(NOW).cookie.partition(".")
    assert SESSIONS.read(f"ffffffff.{rest}", NOW) is None


def test_session_contains_no_secret():
    session = SESSIONS.issue(NOW)
    assert "token" not in session.cookie and session.form_token not in session.cookie


def test_session_names_its_actor():
    first, second = SESSIONS.issue(NOW), SESSIONS.issue(NOW)
    assert first.actor.startswith("login:") and first.actor != second.actor
    assert first.actor.removeprefix("login:") not in first.cookie


def test_form_token_belongs_to_one_session():
    first, second = SESSIONS.issue(NOW), SESSIONS.issue(NOW)
    assert first.form_token and first.form_token != second.form_token


@pytest.mark.parametrize("text", ["+12025550143", "Bremsbeläge \N{BICYCLE}", "x" * 200])
def test_sealed_text_comes_back(text):
    params = SealedParam(Secret("token"))
    assert params.unseal(params.seal(text)) == text
    assert params.seal(text) == params.seal(text) and text not in params.seal(text)


@pytest.mark.parametrize("param", ["", "x", "äöü", "a" * 40, "../../etc/passwd"])
def test_forged_params_are_not_unsealed(param):
    assert SealedParam(Secret("token")).unseal(param) is None
    assert SealedParam(Secret("other")).unseal(SealedParam(Secret("token")).seal("text")) is None


def test_wrong_tokens_are_limited_for_a_minute():
    throttle = LoginThrottle()
    for _ in range(MAX_ATTEMPTS):
        assert throttle.allows("192.0.2.1", NOW)
        throttle.record_failure("192.0.2.1", NOW)
    assert not throttle.allows("192.0.2.1", NOW) and throttle.allows("192.0.2.2", NOW)
    assert throttle.allows("192.0.2.1", NOW + ATTEMPT_SECONDS)


def test_one_subscriber_is_one_address():
    throttle = LoginThrottle()
    for number in range(MAX_ATTEMPTS):
        throttle.record_failure(f"2001:db8::{number}", NOW)
    assert not throttle.allows("2001:db8::ffff", NOW) and throttle.allows("2001:db8:0:1::1", NOW)


# Guest links

TOKENS = TokenCodec(Secret("token"))
LINK = GuestLink("+12025550143", "maya", int(NOW) + 60)


def test_link_can_be_read_back():
    assert TOKENS.read(GuestLink, TOKENS.seal(LINK), NOW) == LINK


def test_link_is_encrypted():
    assert "2025550143" not in TOKENS.seal(LINK)
    assert TokenCodec(Secret("another token")).read(GuestLink, TOKENS.seal(LINK), NOW) is None


def test_two_links_differ():
    assert TOKENS.seal(LINK) != TOKENS.seal(GuestLink(LINK.caller, LINK.called, LINK.expires))


def test_expired_link_is_rejected():
    assert TOKENS.read(GuestLink, TOKENS.seal(LINK), LINK.expires) is None


def test_link_is_no_watch_token():
    assert TOKENS.read(WatchToken, TOKENS.seal(LINK), NOW) is None


@pytest.mark.parametrize("token", ["", "x", "é", "=" * 9, TOKENS.seal(LINK)[:-2], TOKENS.seal(LINK)[::-1], "a" * 5000])
def test_damaged_link_is_rejected(token: str):
    assert TOKENS.read(GuestLink, token, NOW) is None
