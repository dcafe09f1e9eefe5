import pytest

from tests.fakes.llm import FakeLlm
from tests.llm.upstreams import KINDS, build


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
async def llm(kind):
    async with FakeLlm(profile="openai" if kind == "anthropic" else kind) as llm:
        yield llm


@pytest.fixture
async def upstream(kind, llm):
    upstream = build(kind, llm.url)
    yield upstream
    await upstream.close()
