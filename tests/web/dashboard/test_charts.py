"""SVG elements: escaped text, short numbers, round ticks."""

import pytest
from markupsafe import Markup

from gateway.web.dashboard.charts import box, element, path, picture, ticks


def test_text_and_attributes_are_escaped():
    drawn = element("text", '<b>"\u202e', class_='"x"', data_at="1")
    assert drawn == '<text class="&#34;x&#34;" data-at="1">&lt;b&gt;&#34;\N{REPLACEMENT CHARACTER}</text>'


def test_markup_is_nested_as_it_is():
    assert element("g", element("title", "a & b")) == "<g><title>a &amp; b</title></g>"


def test_missing_attributes_are_left_out():
    assert element("rect", width=None) == "<rect></rect>"


def test_numbers_have_one_decimal():
    assert 'x="1.2" y="3" width="0" height="4"' in box(1.23, 3.0, -5.0, 4.0, "bar")
    assert path([(0, 1.25), (2, 3)], "curve", closed=True) == '<path d="M0 1.2 L2 3 Z" class="curve"></path>'


def test_picture_is_labelled_for_screen_readers():
    drawn = picture(10, 5, "3 calls", Markup("<g></g>"), class_="plot")
    assert drawn.startswith("<svg") and "<title>3 calls</title><g></g>" in drawn
    assert 'viewBox="0 0 10 5"' in drawn and 'role="img"' in drawn


@pytest.mark.parametrize("most, expected", [(4, [0, 1, 2, 3, 4]), (7, [0, 2, 4, 6, 8]), (0.5, [0, 0.2, 0.4, 0.6])])
def test_ticks_are_round(most, expected):
    assert [round(tick, 6) for tick in ticks(most)] == expected
