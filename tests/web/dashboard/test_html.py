"""Templates: escaped, without control characters, with static files that can be cached."""

import hashlib
import re
import time
from datetime import UTC, datetime, timedelta

import pytest

from gateway.web.dashboard.html import Pages, ago, cleaned, midnight, percent, shown_time, static_file


async def rendered(problem: object) -> str:
    return await Pages().render("login.html", form_token="", problem=problem, command="gateway login-link")


async def test_values_are_escaped_and_cleaned():
    page = await rendered("<script>\x1b\u202e</script>")
    assert "&lt;script&gt;\N{REPLACEMENT CHARACTER}\N{REPLACEMENT CHARACTER}&lt;/script&gt;" in page


async def test_static_files_carry_their_digest():
    [digest] = re.findall(r"/static/style\.css\?v=(\w+)", await rendered(""))
    assert hashlib.sha256(static_file("style.css")).hexdigest().startswith(digest)


async def test_missing_value_is_an_error():
    with pytest.raises(Exception, match="'problem' is undefined"):
        await Pages().render("login.html", form_token="", command="")


@pytest.mark.parametrize(
    "template, expected",
    [
        ("{{ '2026-02-06T12:00:00+00:00' | time('day') | striptags }}", "Fri 6 Feb 2026"),
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


@pytest.mark.parametrize(
    "seconds, words",
    [(3, "just now"), (42, "42 seconds ago"), (60, "1 minute ago"), (7200, "2 hours ago"), (86_400 * 3, "3 days ago")],
)
def test_ago(seconds, words):
    assert ago(NOW - timedelta(seconds=seconds), NOW) == words


def test_long_ago_is_a_day():
    assert ago("2025-02-07T12:00:00+00:00", NOW) == "7 Feb 2025"


def test_long_ago_is_a_day_of_the_zone(in_berlin):
    assert ago("2025-02-07T23:30:00+00:00", NOW) == "8 Feb 2025"


def test_percent():
    assert percent(0.126) == "13%"


def test_text_is_cleaned_of_what_steers_a_screen():
    assert cleaned("a\x1b[2J\u202eb\nc\td") == "a\N{REPLACEMENT CHARACTER}[2J\N{REPLACEMENT CHARACTER}b\nc\td"


# Times


@pytest.fixture
def in_berlin(monkeypatch):
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(
    "form, text",
    [
        ("moment", "Sat 7 Feb 2026, 13:00 CET"),
        ("clock", "13:00 CET"),
        ("day", "Sat 7 Feb 2026"),
        ("row", "<b>13:00 CET</b> <span>Sat 7 Feb 2026</span>"),
    ],
)
def test_time_has_its_zone_and_an_offset_for_scripts(in_berlin, form, text):
    shown = shown_time(NOW.isoformat(), form)
    assert shown == f'<time datetime="2026-02-07T13:00:00+01:00" data-form="{form}">{text}</time>'


def test_age_shows_the_moment_on_hovering(in_berlin):
    assert 'title="Sat 7 Feb 2026, 13:00 CET">' in shown_time(NOW, "ago")


@pytest.mark.parametrize(
    "zone, begins",
    [
        ("America/New_York", "2026-02-07T05:00:00+00:00"),
        ("Asia/Kathmandu", "2026-02-06T18:15:00+00:00"),
        ("", "2026-02-06T23:00:00+00:00"),
        ("Not/A_Zone", "2026-02-06T23:00:00+00:00"),
        ("../../etc/passwd", "2026-02-06T23:00:00+00:00"),
        ("\0", "2026-02-06T23:00:00+00:00"),
    ],
)
def test_day_begins_in_the_zone_of_the_browser(in_berlin, zone, begins):
    assert midnight("2026-02-07", zone=zone) == begins


@pytest.mark.parametrize("day", ["", "yesterday", "2026-02-30", "9999-12-31"])
def test_invalid_day_selects_nothing(day):
    assert midnight(day, days=1, zone="Pacific/Kiritimati") == ""
