"""Visits, sealed addresses and patience, without a browser."""

import pytest

from gateway.settings import Secret
from gateway.web.login_sessions import MOST_TRIES, TRY_SECONDS, VISIT_SECONDS, LoginThrottle, SealedParam, SessionCodec

NOW = 1_770_000_000.0
BOOK = SessionCodec(Secret("token"))


def test_visit_is_known_again_until_it_ends():
    visit = BOOK.begin(NOW)
    assert BOOK.recognise(visit.value, NOW + VISIT_SECONDS - 1) == visit
    assert BOOK.recognise(visit.value, NOW + VISIT_SECONDS + 1) is None


def test_other_nodes_with_the_token_know_it_too():
    visit = BOOK.begin(NOW)
    assert SessionCodec(Secret("token")).recognise(visit.value, NOW) == visit
    assert SessionCodec(Secret("another")).recognise(visit.value, NOW) is None


def test_visit_can_not_be_prolonged():
    _, _, rest = BOOK.begin(NOW).value.partition(".")
    assert BOOK.recognise(f"ffffffff.{rest}", NOW) is None


def test_visit_holds_no_secret():
    visit = BOOK.begin(NOW)
    assert "token" not in visit.value and visit.form_token not in visit.value


def test_form_token_belongs_to_one_visit():
    first, second = BOOK.begin(NOW), BOOK.begin(NOW)
    assert BOOK.is_from_form(first, first.form_token)
    assert not BOOK.is_from_form(first, second.form_token)
    assert not BOOK.is_from_form(first, "")


@pytest.mark.parametrize("offered, admitted", [("token", True), ("", False), ("tokens", False), ("tökén", False)])
def test_only_the_token_admits(offered, admitted):
    assert BOOK.admits(offered) is admitted


@pytest.mark.parametrize("text", ["+12025550143", "Bremsbeläge \N{BICYCLE}", "x" * 200])
def test_sealed_text_comes_back(text):
    envelope = SealedParam(Secret("token"))
    assert envelope.unseal(envelope.seal(text)) == text
    assert envelope.seal(text) == envelope.seal(text) and text not in envelope.seal(text)


@pytest.mark.parametrize("word", ["", "x", "äöü", "a" * 40, "../../etc/passwd"])
def test_forged_words_are_not_unsealed(word):
    assert SealedParam(Secret("token")).unseal(word) is None
    assert SealedParam(Secret("other")).unseal(SealedParam(Secret("token")).seal("text")) is None


def test_patience_runs_out_and_comes_back():
    patience = LoginThrottle()
    for _ in range(MOST_TRIES):
        assert patience.left("192.0.2.1", NOW)
        patience.was_wrong("192.0.2.1", NOW)
    assert not patience.left("192.0.2.1", NOW) and patience.left("192.0.2.2", NOW)
    assert patience.left("192.0.2.1", NOW + TRY_SECONDS)


def test_one_subscriber_is_one_address():
    patience = LoginThrottle()
    for number in range(MOST_TRIES):
        patience.was_wrong(f"2001:db8::{number}", NOW)
    assert not patience.left("2001:db8::ffff", NOW) and patience.left("2001:db8:0:1::1", NOW)
