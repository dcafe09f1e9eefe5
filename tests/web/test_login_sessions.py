"""Login sessions and login links, without a browser."""

import pytest

from gateway.cluster.redis_store import RedisStore, connect
from gateway.cluster.store import LocalStore
from gateway.errors import SharedStoreUnavailable
from gateway.history.api_tokens import TokenScope, TokenTable
from gateway.history.stores import open_local_store
from gateway.settings import Secret
from gateway.web.login_sessions import IDLE_SECONDS, LINK_SECONDS, SESSION_SECONDS, LoginLinks, LoginSessions
from tests.redis_server import running_redis

TOKEN = Secret("the admin token")


class Clock:
    def __init__(self):
        self.now = 1_770_000_000.0

    def __call__(self):
        return self.now


class AwayStore:
    """A shared store that can be away."""

    def __init__(self, store):
        self._store = store
        self.is_away = False

    def __getattr__(self, name):
        if self.is_away:
            raise SharedStoreUnavailable("away")
        return getattr(self._store, name)


@pytest.fixture
async def store(tmp_path):
    opened = await LocalStore.open(tmp_path / "local.db")
    yield AwayStore(opened)
    await opened.close()


@pytest.fixture
async def tokens(tmp_path):
    opened = await open_local_store(tmp_path / "data")
    yield TokenTable(opened)
    await opened.close()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def logins(store, tokens, clock):
    return LoginSessions(store, tokens, TOKEN, now=clock)


async def test_session_ends_after_a_week(logins, clock):
    session = await logins.open("admin")
    for _ in range(SESSION_SECONDS // 3600 - 1):
        clock.now += 3600
        assert await logins.find(session.cookie) == session
    clock.now += 3600
    assert await logins.find(session.cookie) is None


async def test_idle_session_ends(logins, clock):
    session = await logins.open("admin")
    clock.now += IDLE_SECONDS - 1
    assert await logins.find(session.cookie) == session
    clock.now += IDLE_SECONDS - 1
    assert await logins.find(session.cookie) == session
    clock.now += IDLE_SECONDS
    assert await logins.find(session.cookie) is None


async def test_other_nodes_with_the_token_accept_it(logins, store, tokens, clock):
    session = await logins.open("admin")
    assert await LoginSessions(store, tokens, TOKEN, now=clock).find(session.cookie) == session
    assert await LoginSessions(store, tokens, Secret("another"), now=clock).find(session.cookie) is None


async def test_logout_ends_the_session_on_every_node_at_once(logins, store, tokens, clock):
    elsewhere = LoginSessions(store, tokens, TOKEN, now=clock)
    session, other = await logins.open("admin"), await logins.open("admin")
    assert await elsewhere.find(session.cookie) == session
    await logins.close(session)
    assert await elsewhere.find(session.cookie) is None and await elsewhere.find(other.cookie) == other


async def test_request_during_a_logout_does_not_restore_the_session(logins, store, clock):
    """The time of the last request is stored apart from the session."""
    session = await logins.open("admin")
    clock.now += 3600
    await logins.find(session.cookie)
    await logins.close(session)
    clock.now += 3600
    assert await logins.find(session.cookie) is None


async def test_log_out_everywhere_ends_all_sessions(logins, store, tokens, clock):
    sessions = [await logins.open("admin") for _ in range(3)]
    await LoginSessions(store, tokens, TOKEN, now=clock).close_all()
    assert [await logins.find(session.cookie) for session in sessions] == [None] * 3
    later = await logins.open("admin")
    assert await logins.find(later.cookie) == later


async def test_session_ends_with_its_token(logins, tokens):
    token, _ = await tokens.create(TokenScope.ADMIN)
    session = await logins.open(token.id)
    assert (await logins.find(session.cookie)).token == token.id
    await tokens.revoke(token.id)
    assert await logins.find(session.cookie) is None


async def test_known_session_works_while_the_shared_store_is_away(logins, store):
    known, unknown = await logins.open("admin"), await logins.open("admin")
    await logins.find(known.cookie)
    store.is_away = True
    assert await logins.find(known.cookie) == known
    with pytest.raises(SharedStoreUnavailable):
        await logins.find(unknown.cookie)


async def test_cookie_is_not_stored(logins, store, tmp_path):
    session = await logins.open("admin")
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("local.db*"))
    assert session.cookie.encode() not in stored and session.id.encode() not in stored
    assert session.form_token not in session.cookie and session.id not in session.cookie


async def test_nodes_share_sessions_and_used_links_through_redis(tmp_path, tokens):
    async with running_redis(tmp_path / "redis") as server:
        stores = [RedisStore(connect(server.url)) for _ in range(2)]
        here, elsewhere = (LoginSessions(store, tokens, TOKEN) for store in stores)
        code = LoginLinks(TOKEN).make()
        session = await here.open_by_link(code)
        assert await elsewhere.find(session.cookie) == session and await elsewhere.open_by_link(code) is None
        await elsewhere.close(session)
        assert await here.find(session.cookie) is None
        other = await here.open("admin")
        await elsewhere.close_all()
        assert await here.find(other.cookie) is None
        for store in stores:
            await store.close()


async def test_sessions_differ(logins):
    first, second = await logins.open("admin"), await logins.open("admin")
    assert len({first.id, second.id, first.form_token, second.form_token, first.cookie, second.cookie}) == 6
    assert first.actor == f"login:{first.id}"


@pytest.mark.parametrize("cookie", ["x", "é", "../x", "a" * 5000])
async def test_forged_cookie_is_no_session(logins, cookie):
    assert await logins.find(cookie) is None


# Login links


async def test_link_works_once(logins, clock):
    code = LoginLinks(TOKEN).make(clock.now)
    session = await logins.open_by_link(code)
    assert session.token == "admin" and await logins.find(session.cookie) == session
    assert await logins.open_by_link(code) is None


async def test_link_works_once_on_all_nodes(logins, store, tokens, clock):
    code = LoginLinks(TOKEN).make(clock.now)
    assert await LoginSessions(store, tokens, TOKEN, now=clock).open_by_link(code) is not None
    assert await logins.open_by_link(code) is None


async def test_link_expires(logins, clock):
    code = LoginLinks(TOKEN).make(clock.now)
    clock.now += LINK_SECONDS
    assert await logins.open_by_link(code) is None


async def test_code_of_another_gateway_is_no_link(logins):
    assert await logins.open_by_link(LoginLinks(Secret("another")).make()) is None


@pytest.mark.parametrize("code", ["", "x", "é", "a" * 60, TOKEN.reveal()])
async def test_forged_code_is_no_link(logins, code):
    assert await logins.open_by_link(code) is None


def test_code_hides_the_token():
    assert TOKEN.reveal() not in LoginLinks(TOKEN).make() and LoginLinks(TOKEN).make() != LoginLinks(TOKEN).make()
