"""Passes of the browser phone: whole or worthless, each for its own use, and not for ever."""

import pytest

from gateway.settings import Secret
from gateway.web.guest_links import GuestLink, TokenCodec, WatchToken

NOW = 1_700_000_000
BOOK = TokenCodec(Secret("token"))
LINK = GuestLink("+12025550143", "maya", NOW + 60, "era")


def test_pass_comes_back_as_it_was():
    assert BOOK.read(GuestLink, BOOK.seal(LINK), NOW) == LINK


def test_pass_can_not_be_read_by_others():
    assert "2025550143" not in BOOK.seal(LINK)
    assert TokenCodec(Secret("another token")).read(GuestLink, BOOK.seal(LINK), NOW) is None


def test_no_two_links_are_one():
    assert BOOK.seal(LINK) != BOOK.seal(GuestLink(LINK.caller, LINK.called, LINK.expires, LINK.era))


def test_old_pass_is_none():
    assert BOOK.read(GuestLink, BOOK.seal(LINK), LINK.expires) is None


def test_pass_is_for_its_own_use():
    assert BOOK.read(WatchToken, BOOK.seal(LINK), NOW) is None


@pytest.mark.parametrize("word", ["", "x", "é", "=" * 9, BOOK.seal(LINK)[:-2], BOOK.seal(LINK)[::-1], "a" * 5000])
def test_damaged_pass_is_none(word: str):
    assert BOOK.read(GuestLink, word, NOW) is None
