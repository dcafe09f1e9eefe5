"""API tokens: created, found, expired, revoked; and what is kept of them."""

from datetime import UTC, datetime, timedelta

import pytest

from gateway.errors import StoreUnavailable
from gateway.history import api_tokens
from gateway.history.api_tokens import CACHE_SECONDS, TokenScope, TokenTable, forget_bound_tokens

START = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
ANA, BEN = "+12025550101", "+12025550102"


class Clock:
    """Both clocks of a TokenTable, moved by hand."""

    def __init__(self):
        self.passed = 0.0

    def pass_(self, seconds):
        self.passed += seconds

    def table(self, store):
        return TokenTable(store, now=lambda: START + timedelta(seconds=self.passed), clock=lambda: self.passed)

    def status(self, token):
        return token.status(START + timedelta(seconds=self.passed))


class BrokenStore:
    """A store that answers once, and then is away."""

    def __init__(self, store):
        self._store = store
        self.is_away = False

    async def fetch(self, query, *values):
        if self.is_away:
            raise StoreUnavailable("away")
        return await self._store.fetch(query, *values)

    async def change(self, statement, *values):
        if self.is_away:
            raise StoreUnavailable("away")
        return await self._store.change(statement, *values)


@pytest.fixture
async def store(ground):
    async with ground.opened(schema=api_tokens.SCHEMA) as store:
        yield store


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def table(store, clock):
    return clock.table(store)


async def test_token_is_found_by_its_text(table):
    token, text = await table.create(TokenScope.READ, label="Grafana")
    found = await table.find(text)
    assert text.startswith(f"vg_{token.id}_") and len(text.split("_", 2)[2]) == 43
    assert (found.id, found.scope, found.label) == (token.id, "read", "Grafana")


async def test_only_a_hash_is_kept(table, store):
    token, text = await table.create(TokenScope.READ)
    rows = await store.fetch("SELECT * FROM api_tokens")
    assert text.split("_", 2)[2] not in str(rows) and token.hash not in repr(token)


async def test_near_misses_are_not_found(table):
    token, text = await table.create(TokenScope.READ)
    other, other_text = await table.create(TokenScope.READ)
    swapped = text.replace(token.id, other.id)
    for wrong in ("", "vg_", text[:-1], text + "x", text.upper(), f" {text}", swapped, "vg_00000000_" + "x" * 43):
        assert await table.find(wrong) is None


async def test_token_expires(table, clock):
    token, text = await table.create(TokenScope.READ, days=30)
    clock.pass_(30 * 86_400 - 1)
    assert clock.status(await table.find(text)) == "active"
    clock.pass_(1)
    assert clock.status(await table.find(text)) == "expired" and not await table.is_active(token.id)


async def test_token_without_expiry_stays(table, clock):
    token, text = await table.create(TokenScope.READ, days=0)
    clock.pass_(20 * 365 * 86_400)
    assert token.expires_at is None and await table.is_active(token.id)


async def test_revoked_token_is_refused_elsewhere_within_the_cache_time(store, clock):
    here, elsewhere = clock.table(store), clock.table(store)
    token, text = await here.create(TokenScope.READ)
    assert await elsewhere.is_active(token.id)
    assert await here.revoke(token.id) and not await here.is_active(token.id)
    assert await elsewhere.is_active(token.id)
    clock.pass_(CACHE_SECONDS)
    assert clock.status(await elsewhere.find(text)) == "revoked" and not await elsewhere.is_active(token.id)
    assert not await here.revoke(token.id) and not await here.revoke("00000000")


async def test_requests_cost_one_query_per_cache_time(store, clock):
    broken = BrokenStore(store)
    table = clock.table(broken)
    _, text = await table.create(TokenScope.READ)
    await table.find(text)
    broken.is_away = True  # a query now would be noticed
    assert await table.find(text) is not None and await table.find("vg_00000000_" + "x" * 43) is None


async def test_known_tokens_work_while_the_database_is_away(store, clock):
    broken = BrokenStore(store)
    table = clock.table(broken)
    _, text = await table.create(TokenScope.READ)
    await table.find(text)
    broken.is_away = True
    clock.pass_(7200)
    assert await table.find(text) is not None
    with pytest.raises(StoreUnavailable):
        await clock.table(broken).find(text)


async def test_last_use_is_kept_by_the_hour(table, clock):
    _, text = await table.create(TokenScope.READ)
    [token] = await table.tokens()
    assert token.last_used_at is None
    await table.find(text)
    clock.pass_(3599)
    await table.find(text)
    [token] = await table.tokens()
    assert token.last_used_at == START
    clock.pass_(1)
    await table.find(text)
    [token] = await table.tokens()
    assert token.last_used_at == START + timedelta(hours=1)


@pytest.mark.parametrize(
    "options, problem",
    [
        ({"days": -1}, "valid for 1 to 3650 days"),
        ({"days": 3651}, "valid for 1 to 3650 days"),
        ({"label": "x" * 81}, "label is longer than 80"),
        ({"scope": TokenScope.MCP, "agent": "maya"}, "give both or neither"),
        ({"scope": TokenScope.MCP, "caller": ANA}, "give both or neither"),
        ({"scope": TokenScope.READ, "agent": "maya", "caller": ANA}, "only tokens with the scope mcp"),
    ],
)
async def test_mistakes_say_what_to_change(table, options, problem):
    with pytest.raises(ValueError, match=problem):
        await table.create(**{"scope": TokenScope.READ, **options})
    assert await table.tokens() == []


async def test_newest_token_is_listed_first(table, clock):
    first, _ = await table.create(TokenScope.READ)
    clock.pass_(1)
    second, _ = await table.create(TokenScope.MCP, agent="maya", caller=ANA)
    assert [token.id for token in await table.tokens()] == [second.id, first.id]


async def test_tokens_of_an_erased_caller_are_deleted(table, store):
    bound = [(agent, caller) for agent in ("maya", "otto") for caller in (ANA, BEN)]
    for agent, caller in bound:
        await table.create(TokenScope.MCP, agent=agent, caller=caller)
    await table.create(TokenScope.ADMIN)
    assert await store.run(lambda connection: forget_bound_tokens(connection, "maya", ANA)) == 1
    assert await store.run(lambda connection: forget_bound_tokens(connection, "", BEN)) == 2
    assert sorted((token.agent, token.caller) for token in await table.tokens()) == [("", ""), ("otto", ANA)]


async def test_llm_token_is_bound_to_an_agent_alone(table):
    token, _ = await table.create(TokenScope.LLM, agent="maya")
    assert (token.agent, token.caller) == ("maya", "")
    for wrong in ({}, {"agent": "maya", "caller": ANA}):
        with pytest.raises(ValueError, match="^a token with the scope llm is bound to an agent; "):
            await table.create(TokenScope.LLM, **wrong)
