"""The Tokens page."""

import re

import pytest

from gateway.history.api_tokens import TokenScope, TokenTable
from tests.web.conftest import Visitor

TOKEN = re.compile(r"vg_[0-9a-f]{8}_[\w-]{43}")


async def created(visitor: Visitor, **form: str) -> str:
    answer = await visitor.post("/tokens/create", **{"scope": "read", "days": "30", **form})
    assert answer.status_code == 200, answer.text
    [text] = TOKEN.findall(answer.text)
    return text


async def test_token_is_shown_once_and_works(visitor: Visitor):
    text = await created(visitor, label="Grafana & <b>co</b>")
    page = await visitor.page("/tokens")
    assert text[:11] in page and text not in page
    assert "Grafana &amp; &lt;b&gt;co&lt;/b&gt;" in page
    answer = await visitor.http.get("/v1/sessions", headers={"Authorization": f"Bearer {text}"})
    assert answer.status_code == 200
    assert "just now" in await visitor.page("/tokens")


async def test_revoked_token_is_refused_at_once_here(visitor: Visitor):
    text = await created(visitor)
    token_id, key = text[3:11], {"X-API-Key": text}
    assert (await visitor.http.get("/v1/latency", headers=key)).status_code == 200
    assert (await visitor.post(f"/tokens/{token_id}/revoke")).status_code == 400  # without the tick
    assert (await visitor.post(f"/tokens/{token_id}/revoke", sure="yes")).headers["location"] == "/tokens?done=revoked"
    answer = await visitor.http.get("/v1/latency", headers=key)
    assert (answer.status_code, answer.json()) == (401, {"detail": "this token is revoked; create another one"})
    page = await visitor.page("/tokens?done=revoked")
    assert "Revoked." in page and '<span class="badge bad">revoked</span>' in page
    assert (await visitor.post(f"/tokens/{token_id}/revoke", sure="yes")).status_code == 400


async def test_mcp_token_may_be_bound(visitor: Visitor):
    agent = re.findall(r"<option>([^<]+)</option>", await visitor.page("/tokens"))[0]
    await created(visitor, scope="mcp", agent=agent, caller="+1 202 555 0143")
    [token] = await TokenTable(visitor.store).tokens()
    assert (token.scope, token.agent, token.caller) == (TokenScope.MCP, agent, "+12025550143")
    assert '<bdi>Ana Ruiz</bdi> <span class="number">+1 202-555-0143</span>' in await visitor.page("/tokens")


@pytest.mark.parametrize(
    "form, problem",
    [
        ({"scope": "write"}, "Token not created"),
        ({"days": "x"}, "Token not created"),
        ({"days": "9999"}, "A token is valid for 1 to 3650 days"),
        ({"scope": "mcp", "caller": "Ana"}, "The caller must be a phone number like +12025550143"),
        ({"scope": "mcp", "caller": "+12025550143"}, "A token is bound to an agent and a caller"),
    ],
)
async def test_mistake_in_the_form_is_explained(visitor: Visitor, form: dict[str, str], problem: str):
    answer = await visitor.post("/tokens/create", **{"scope": "read", "days": "30", **form})
    assert answer.status_code == 400 and problem in answer.text
    assert await TokenTable(visitor.store).tokens() == []


async def test_empty_page_says_what_tokens_are_for(visitor: Visitor):
    assert "No tokens yet" in await visitor.page("/tokens")
