"""Templates: escaped, without control characters, with static files that can be cached."""

import hashlib
import re
from datetime import UTC, datetime, timedelta

import pytest

from gateway.web.dashboard.html import Pages, ago, cleaned, count, duration, milliseconds, percent, static_file


async def rendered(problem: object) -> str:
    return await Pages().render("login.html", form_token="", problem=problem)


async def test_values_are_escaped_and_cleaned():
    page = await rendered("<script>\x1b\u202e</script>")
    assert "&lt;script&gt;\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}&lt;/script&gt;" in page


async def test_static_files_carry_their_digest():
    [digest] = re.findall(r"/static/style\.css\?v=(\w+)", await rendered(""))
    assert hashlib.sha256(static_file("style.css")).hexdigest().startswith(digest)


async def test_missing_value_is_an_error():
    with pytest.raises(Exception, match="'problem' is undefined"):
        await Pages().render("login.html", form_token="")


@pytest.mark.parametrize(
    "template, expected",
    [
        ("{{ '2026-02-06T12:00:00+00:00' | day }}", "Fri 6 Feb 2026"),
        ("{{ 67 | duration }}", "1:07"),
        ("{{ 0.84 | ms }}", "840 ms"),
        ("{{ 0.5 | percent }}", "50%"),
        ("{{ 1 | count('call') }}", "1 call"),
        ("{{ '+12025550143' | number }}", "+1 202-555-0143"),
        ("{{ {'a': '<'} | json }}", "{&#34;a&#34;:&#34;&lt;&#34;}"),
    ],
)
def test_filters_format_values(template, expected):
    assert Pages()._environment.from_string(template).render() == expected


# Text

NOW = datetime(2026, 2, 7, 12, tzinfo=UTC)


@pytest.mark.parametrize("seconds, words", [(0, "0:00"), (65.4, "1:05"), (3725, "1:02:05"), (-3, "0:00")])
def test_durations(seconds, words):
    assert duration(seconds) == words


@pytest.mark.parametrize("seconds, words", [(None, "–"), (0.0842, "84 ms"), (0.9999, "1.0 s"), (12.34, "12.3 s")])
def test_milliseconds(seconds, words):
    assert milliseconds(seconds) == words


@pytest.mark.parametrize(
    "seconds, words",
    [(3, "just now"), (42, "42 seconds ago"), (60, "1 minute ago"), (7200, "2 hours ago"), (86_400 * 3, "3 days ago")],
)
def test_ago(seconds, words):
    assert ago(NOW - timedelta(seconds=seconds), NOW) == words


def test_long_ago_is_a_day():
    assert ago("2025-02-07T12:00:00+00:00", NOW) == "7 Feb 2025"


def test_counts():
    assert [count(1, "call"), count(1200, "call"), count(2, "stretch", "stretches")] == [
        "1 call",
        "1,200 calls",
        "2 stretches",
    ]
    assert percent(0.126) == "13%"


def test_text_is_cleaned_of_what_steers_a_screen():
    assert cleaned("a\x1b[2J\u202eb\nc\td") == "a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}b\nc\td"
