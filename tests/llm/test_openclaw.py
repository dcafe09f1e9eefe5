"""Sessions and oddities of OpenClaw."""

import pytest

from gateway.errors import LlmError, LlmUnavailable
from gateway.llm.chat import ChatRequest, Finished, TextDelta
from gateway.llm.openclaw import OpenClawUpstream
from gateway.settings import Secret
from gateway.simulate.gateway_under_test import serve_on_loopback
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Pace
from tests.llm.upstreams import (
    CALL,
    GREETING,
    PROMPT,
    QUESTION,
    REQUEST,
    ask,
    choice,
    stream_of,
)


@pytest.mark.parametrize("kind", ["openclaw-old", "openclaw-new"], indirect=True)
async def test_session_gets_each_message_once(llm, upstream):
    """Over two turns of a call, OpenClaw's own history is the conversation, not twice of it."""
    first = (PROMPT, GREETING, QUESTION)
    more = ({"role": "assistant", "content": "It is ready."}, {"role": "user", "content": "And the price?"})
    await ask(upstream, ChatRequest(first), "caller-1")
    llm.answers("Ten.")
    await ask(upstream, ChatRequest((*first, *more), memory="Likes it short."), "caller-1")
    said = [QUESTION, *more, {"role": "assistant", "content": "Ten."}]
    assert llm.sessions == {"agent:main:voice:caller-1": said}
    memory = {"role": "system", "content": "Likes it short."}
    assert llm.requests[1].body["messages"] == [PROMPT, memory, more[1]]


@pytest.mark.parametrize("kind", ["openclaw-new"], indirect=True)
async def test_tool_result_goes_to_session(llm, upstream):
    asked = {"role": "assistant", "content": None, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": "call_1", "content": "ready"}
    await ask(upstream, ChatRequest((PROMPT, QUESTION, asked, result)), "caller-1")
    assert llm.requests[0].body["messages"] == [PROMPT, result]


@pytest.mark.parametrize("kind", ["openclaw-new"], indirect=True)
async def test_unknown_caller_has_no_session(llm, upstream):
    await ask(upstream, REQUEST)
    assert llm.requests[0].body["messages"] == [PROMPT, GREETING, QUESTION]
    assert "x-openclaw-session-key" not in llm.requests[0].headers


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/"])
async def test_openclaw_gets_the_session_key(path):
    async with FakeLlm(profile="openclaw-new") as llm:
        upstream = OpenClawUpstream(llm.url + path, "", Secret("test-key"))
        await ask(upstream, caller_key="caller-1")
        await upstream.close()
    given = {name: value for name, value in llm.requests[0].headers.items() if name.startswith("x-openclaw-")}
    assert given == {
        "x-openclaw-agent-id": "main",
        "x-openclaw-message-channel": "phone",
        "x-openclaw-session-key": "agent:main:voice:caller-1",
    }
    assert llm.requests[0].body["model"] == upstream.model == "openclaw/main"


@pytest.mark.parametrize("kind", ["openclaw-old", "openclaw-new"], indirect=True)
async def test_openclaw_with_nothing_to_say_is_unavailable(llm, upstream):
    llm.answers("")
    with pytest.raises(LlmUnavailable, match="^openclaw sent an error as text$"):
        await ask(upstream)


@pytest.mark.parametrize("kind", ["openclaw-old"], indirect=True)
async def test_openclaw_may_end_unmarked(llm, upstream):
    llm.babbles(stream_of(choice(content="Yes."), done=False))
    assert await ask(upstream) == [TextDelta("Yes."), Finished("stop")]


@pytest.mark.parametrize("kind", ["openclaw-new"], indirect=True)
@pytest.mark.parametrize(
    ("status", "to_do"),
    [
        (400, "; openclaw agents list shows whether it has the agent main"),
        (401, "; correct OPENCLAW_GATEWAY_TOKEN"),
        (404, "; run there: openclaw config set gateway.http.endpoints.chatCompletions.enabled true"),
        (405, "; run there: openclaw config set gateway.http.endpoints.chatCompletions.enabled true"),
        (307, "; correct OPENCLAW_GATEWAY_URL"),
        (413, "; openclaw logs shows why"),
        (503, "; openclaw logs shows why"),
    ],
)
async def test_openclaw_errors_say_where_and_what_to_do(llm, upstream, status, to_do):
    llm.fails(status)
    with pytest.raises(LlmError) as raised:
        await ask(upstream)
    assert str(raised.value) == f"openclaw at {llm.url}/v1/chat/completions answered {status}{to_do}"
    assert raised.value.retryable is (status == 503)


_TO_DO = "; start it, or correct OPENCLAW_GATEWAY_URL"


async def test_unreachable_openclaw_is_named_without_secrets():
    async with FakeLlm() as gone:
        address = gone.url.removeprefix("http://")
    upstream = OpenClawUpstream(f"http://ana:secret@{address}/claw/v1/", "", None)
    with pytest.raises(LlmUnavailable) as raised:
        await ask(upstream)
    await upstream.close()
    shown = f"openclaw at http://{address}/claw/v1/chat/completions"
    assert str(raised.value) == f"{shown} can't be reached: connection refused{_TO_DO}"


async def test_another_server_in_its_place_is_named():
    async def website(scope, receive, send):
        headers = [(b"content-type", b"text/html; charset=utf-8")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"<h1>Welcome</h1>"})

    async with serve_on_loopback(website, lifespan="off") as url:
        upstream = OpenClawUpstream(url, "", Secret("test-key"))
        with pytest.raises(LlmUnavailable) as raised:
            await ask(upstream)
        await upstream.close()
    answered = "answered 200 with text/html, not with a chat completion; correct OPENCLAW_GATEWAY_URL"
    assert str(raised.value) == f"openclaw at {url}/v1/chat/completions {answered}"


@pytest.mark.virtual_time
async def test_silent_openclaw_is_named():
    async with FakeLlm(profile="openclaw-new", pace=Pace(hangs="before headers")) as llm:
        upstream = OpenClawUpstream(llm.url, "", Secret("test-key"))
        with pytest.raises(LlmUnavailable) as raised:
            await ask(upstream)
        await upstream.close()
    assert str(raised.value) == f"openclaw at {llm.url}/v1/chat/completions did not answer in time{_TO_DO}"
