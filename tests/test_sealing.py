"""Sealed values and signatures: whole or worthless, each for its own purpose and token."""

import pytest

from gateway.sealing import Sealer, Signer, is_same
from gateway.settings import Secret

TOKEN = Secret("token")
SEALER = Sealer(TOKEN, "links")
SIGNER = Signer.for_purpose(TOKEN, "sessions")


def test_sealed_value_comes_back_as_it_was():
    assert SEALER.open(SEALER.seal(b"+12025550143", "a"), "a") == b"+12025550143"
    assert SEALER.open_text(SEALER.seal_text(b"+12025550143")) == b"+12025550143"
    assert SEALER.open_json(SEALER.seal_json({"to": "maya"})) == {"to": "maya"}


def test_sealed_value_can_not_be_read():
    assert b"2025550143" not in SEALER.seal(b"+12025550143")
    assert "2025550143" not in SEALER.seal_text(b"+12025550143")


def test_same_value_is_sealed_the_same():
    assert SEALER.seal_text(b"x") == SEALER.seal_text(b"x") != SEALER.seal_text(b"y")


def test_sealed_text_fits_into_a_url():
    sealed = SEALER.seal_text(bytes(range(256)))
    assert sealed.replace("-", "").replace("_", "").isalnum()


@pytest.mark.parametrize(
    "other", [Sealer(Secret("another"), "links"), Sealer(TOKEN, "orders")], ids=["another token", "another purpose"]
)
def test_other_key_opens_nothing(other):
    assert other.open(SEALER.seal(b"x")) is None
    assert other.open_json(SEALER.seal_json(1)) is None


@pytest.mark.parametrize("context", ["", "b"])
def test_other_context_opens_nothing(context):
    assert SEALER.open(SEALER.seal(b"x", "a"), context) is None


@pytest.mark.parametrize("word", ["", "x", "é", "=" * 9, SEALER.seal_text(b"x")[:-2], SEALER.seal_text(b"x")[::-1]])
def test_damaged_text_opens_nothing(word):
    assert SEALER.open_text(word) is None


@pytest.mark.parametrize("sealed", [b"", b"x", SEALER.seal(b"hello")[:-1]])
def test_damaged_bytes_open_nothing(sealed):
    assert SEALER.open(sealed) is None


def test_signature_is_of_one_text_key_and_purpose():
    signature = SIGNER.sign("7f.abc")
    assert SIGNER.sign("7f.abc") == signature
    assert SIGNER.sign("80.abc") != signature
    assert Signer.for_purpose(TOKEN, "forms").sign("7f.abc") != signature
    assert Signer.for_purpose(Secret("another"), "sessions").sign("7f.abc") != signature


def test_key_is_not_the_token():
    assert b"token" not in SIGNER.key


@pytest.mark.parametrize("offered, same", [("token", True), ("", False), ("tokens", False), ("tökén", False)])
def test_secrets_are_compared(offered, same):
    assert is_same(offered, "token") is same
