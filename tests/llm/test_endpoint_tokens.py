import pytest

from gateway.llm.agent_llm import AgentLlm
from gateway.llm.responder import Responder
from gateway.llm.responder_factory import MOST_GUESTS, EndpointTokens, digest_of


async def nowhere(digest):
    return None


def responder():
    return Responder("maya", "", AgentLlm((), 1.0, "One moment.", "Sorry.", "en"))


async def test_each_call_has_its_bearer():
    endpoint_tokens, first, second = EndpointTokens(nowhere), responder(), responder()
    of_first, of_second = endpoint_tokens.open(first), endpoint_tokens.open(second)
    assert await endpoint_tokens.find(of_first) is first
    assert await endpoint_tokens.find(of_second) is second


async def test_bearer_dies_with_its_call():
    endpoint_tokens, other = EndpointTokens(nowhere), responder()
    bearer, others = endpoint_tokens.open(responder()), endpoint_tokens.open(other)
    endpoint_tokens.close(bearer)
    endpoint_tokens.close(bearer)
    assert await endpoint_tokens.find(bearer) is None
    assert await endpoint_tokens.find(others) is other


@pytest.mark.parametrize("change", [lambda bearer: "", lambda bearer: bearer[:-1], lambda bearer: bearer + "é"])
async def test_other_bearer_opens_nothing(change):
    endpoint_tokens = EndpointTokens(nowhere)
    assert await endpoint_tokens.find(change(endpoint_tokens.open(responder()))) is None


async def test_bearer_is_not_kept():
    endpoint_tokens = EndpointTokens(nowhere)
    bearer = endpoint_tokens.open(responder())
    assert len(bearer) == 43
    assert bearer not in repr(vars(endpoint_tokens))


# Calls of other nodes


@pytest.fixture
def others():
    """Digests of the bearers that another node has given out."""
    return set()


@pytest.fixture
def here(others):
    async def elsewhere(digest):
        return responder() if digest in others else None

    return EndpointTokens(elsewhere)


async def test_call_of_another_node_has_one_thinker(here, others):
    """Its equal requests share their answer, as they do where it lives."""
    others.add(digest_of("theirs"))
    found = await here.find("theirs")
    assert found is not None
    assert await here.find("theirs") is found


async def test_call_of_another_node_ends_there(here, others):
    others.add(digest_of("theirs"))
    await here.find("theirs")
    others.clear()
    assert await here.find("theirs") is None


async def test_own_call_is_not_looked_for_elsewhere(here, others):
    own = responder()
    bearer = here.open(own)
    others.add(digest_of(bearer))
    assert await here.find(bearer) is own


async def test_no_bearer_is_not_looked_for(here, others):
    others.add(digest_of(""))
    assert await here.find("") is None


async def test_guests_are_limited(here, others):
    others |= {digest_of(str(number)) for number in range(MOST_GUESTS + 1)}
    first = await here.find("0")
    second = await here.find("1")
    for number in (0, *range(2, MOST_GUESTS + 1)):
        await here.find(str(number))
    assert await here.find("0") is first
    assert await here.find("1") is not second
