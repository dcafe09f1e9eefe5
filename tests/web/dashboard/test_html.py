"""Templates: escaped, without control characters, with static files that can be cached."""

import hashlib
import re

import pytest

from gateway.web.dashboard.html import Pages, static_file


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
