import re
import time

from gateway.llm.chat import ChatRequest, Finished, TextDelta
from gateway.llm.openai import OpenAiUpstream
from scripts.llm_bench.upstream import PIECES, running_upstream


async def test_answer_begins_with_its_moment():
    """The gateway's own client understands the answer, and its first word is when it was sent."""
    async with running_upstream() as url:
        upstream = OpenAiUpstream("bench", f"{url}/v1", "bench", None, options={})
        await upstream.warm()
        asked_ns = time.monotonic_ns()
        *texts, end = [event async for event in upstream.answer(ChatRequest(({"role": "user", "content": "?"},)), "")]
        await upstream.close()
    assert [type(event) for event in texts] == [TextDelta] * PIECES
    first, *others = (event.text for event in texts)
    assert re.fullmatch(r"\d+", first) and asked_ns < int(first) < time.monotonic_ns()
    assert set(others) == {" word"}
    assert end == Finished("stop")
