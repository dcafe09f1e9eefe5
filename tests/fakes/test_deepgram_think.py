"""The simulated Voice Agent as the client of an LLM endpoint: a real HTTP server that streams scripted answers."""

import asyncio
import contextlib
import copy
import json

import pytest

from tests.fakes.deepgram_client import QUIET, connected, contents

HEADERS = {"authorization": "Bearer one-call-token"}


def chunk(delta, finish=None, **more):
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    body = {"id": "c1", "object": "chat.completion.chunk", "created": 1790000000, "model": "m", "choices": [choice]}
    return f"data: {json.dumps(body | more)}\n\n"


def answer(*pieces):
    """A whole, well-formed stream."""
    return [*(chunk({"content": piece}) for piece in pieces), chunk({}, "stop"), "data: [DONE]\n\n"]


class Llm:
    """
    Answers each request with the next stream; remembers heads and bodies.

    A stream is a list of texts to send and of events to wait for. An endless one says a word and then waits until the
    connection is dropped.
    """

    def __init__(self, *streams, status=200, content_type="text/event-stream; charset=utf-8"):
        self.streams = list(streams)
        self.head = f"HTTP/1.1 {status} X\r\ncontent-type: {content_type}\r\nconnection: close\r\n\r\n"
        self.heads, self.bodies = [], []
        self.asked, self.dropped = asyncio.Event(), asyncio.Event()

    async def serve(self, reader, writer):
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        fields = dict(line.split(": ", 1) for line in head.splitlines()[1:] if line)
        fields = {name.lower(): value for name, value in fields.items()}
        self.heads.append((head.splitlines()[0], fields))
        self.bodies.append(json.loads(await reader.readexactly(int(fields["content-length"]))))
        self.asked.set()
        writer.write(self.head.encode())
        await self._stream(self.streams.pop(0), reader, writer)
        writer.close()

    async def _stream(self, stream, reader, writer):
        for part in stream:
            if part is DROPPED:
                await reader.read()
                self.dropped.set()
            elif isinstance(part, str):
                writer.write(part.encode())
            else:
                await part.wait()


DROPPED = object()
ENDLESS = [chunk({"content": "Well, "}), DROPPED]


@contextlib.asynccontextmanager
async def thinking(llm, *, chain=(), functions=(), **behaviour):
    """A configured conversation whose LLM is this one."""
    server = await asyncio.start_server(llm.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/chat/completions"
    settings = copy.deepcopy(QUIET)
    think = settings["agent"]["think"] | {"endpoint": {"url": url, "headers": HEADERS}}
    think["functions"] = [{"name": name, "parameters": {"type": "object"}} for name in functions]
    settings["agent"]["think"] = [think, *chain]
    async with server, connected(settings, **behaviour) as (conversation, client):
        yield conversation, client


async def test_request_is_exactly_as_documented():
    llm = Llm(answer("On Friday."))
    async with thinking(llm, functions=["end_call"]) as (conversation, _):
        await conversation.user_says("And now?")
    line, fields = llm.heads[0]
    assert line == "POST /v1/chat/completions HTTP/1.1"
    assert set(fields) == {"host", "content-length", "content-type", "authorization"}
    assert fields["authorization"] == HEADERS["authorization"]
    assert [message["role"] for message in llm.bodies[0]["messages"]] == ["system", "user", "assistant", "tool", "user"]
    assert llm.bodies[0]["stream"] is True
    assert llm.bodies[0]["tools"][0]["function"]["name"] == "end_call"


async def test_streamed_sentences_are_spoken():
    async with thinking(Llm(answer("On Fri", "day. At", " nine."))) as (conversation, client):
        await conversation.user_says("When?")
        assert contents(await client.until("AgentAudioDone")) == ["When?", "On Friday.", "At nine."]
        assert conversation.think_requests[0].text == "On Friday. At nine."
        assert conversation.problems == []


async def test_first_sentence_does_not_wait():
    """It is spoken while the second is still being made."""
    gate = asyncio.Event()
    first, *rest = answer("On Friday. ", "At nine.")
    async with thinking(Llm([first, gate, *rest])) as (conversation, client):
        turn = asyncio.create_task(conversation.user_says("When?"))
        while contents([await client.receive()]) != ["On Friday."]:
            pass
        gate.set()
        await turn
        assert contents(await client.until("AgentAudioDone")) == ["At nine."]


async def test_tool_call_becomes_function_request():
    call = {"index": 0, "id": "call_7", "type": "function", "function": {"name": "order_status", "arguments": '{"o":'}}
    rest = {"index": 0, "function": {"arguments": "1}"}}
    stream = [chunk({"tool_calls": [call]}), chunk({"tool_calls": [rest]}), chunk({}, "tool_calls"), "data: [DONE]\n\n"]
    llm = Llm(stream, answer("It is ready."))
    async with thinking(llm, functions=["order_status"]) as (conversation, client):
        turn = asyncio.create_task(conversation.user_says("Is it ready?"))
        function = (await client.until("FunctionCallRequest"))[-1]["functions"][0]
        assert function == {"id": "call_7", "name": "order_status", "client_side": True, "arguments": '{"o":1}'}
        response = {"id": "call_7", "name": "order_status", "content": "ready"}
        await client.send({"type": "FunctionCallResponse", **response})
        await turn
        assert llm.bodies[1]["messages"][-1] == {"role": "tool", "tool_call_id": "call_7", "content": "ready"}
        assert contents(await client.until("AgentAudioDone")) == ["It is ready."]


async def test_undefined_function_is_an_error():
    call = {"index": 0, "id": "call_7", "type": "function", "function": {"name": "fly", "arguments": ""}}
    llm = Llm([chunk({"tool_calls": [call]}, "tool_calls"), "data: [DONE]\n\n"])
    async with thinking(llm) as (conversation, client):
        await conversation.user_says("Fly!")
        assert (await client.until("Error"))[-1]["code"] == "NON_EXISTENT_FUNCTION_CALLED"


@pytest.mark.parametrize(
    ("stream", "head"),
    [
        ([], {"status": 500}),
        (["{}"], {"content_type": "application/json"}),
        (["data: {\n\n"], {}),
        (["hello\n\n"], {}),
        (['data: {"error": "overloaded"}\n\n'], {}),
        ([chunk({"content": "Hm."}), "data: [DONE]\n\n"], {}),
        ([chunk({"content": "Hm."}, "stop")], {}),
    ],
)
async def test_useless_answer_fails_conversation(stream, head):
    async with thinking(Llm(stream, **head)) as (conversation, client):
        await conversation.user_says("Is it ready?")
        await client.until("Error")
        assert [warning["code"] for warning in conversation.sent("Warning")] == ["THINK_REQUEST_FAILED"]
        assert [error["code"] for error in conversation.sent("Error")] == ["FAILED_TO_THINK"]


async def test_next_of_chain_steps_in():
    llm = Llm([], status=500)
    chain = [QUIET["agent"]["think"]]
    async with thinking(llm, chain=chain, managed_answer="I will ask.") as (conversation, client):
        await conversation.user_says("Is it ready?")
        assert contents(await client.until("AgentAudioDone")) == ["Is it ready?", "I will ask."]
        assert conversation.problems == ["think: status 500"]


@pytest.mark.parametrize(
    ("extra", "problem"),
    [
        (chunk({}, choices=[]), "think: a chunk without choices"),
        (chunk({"reasoning_content": "hm"}), "think: unknown delta field 'reasoning_content'"),
        (chunk({}, prompt_filter_results=[]), "think: unknown chunk field 'prompt_filter_results'"),
        (chunk({}, id="c2"), "think: id, created or model differs between chunks"),
    ],
)
async def test_sloppy_stream_is_noted(extra, problem):
    first, *rest = answer("Yes.")
    async with thinking(Llm([first, extra, *rest])) as (conversation, client):
        await conversation.user_says("Is it ready?")
        assert contents(await client.until("AgentAudioDone")) == ["Is it ready?", "Yes."]
        assert problem in conversation.problems


async def test_duplicate_request_uses_second_answer():
    llm = Llm(answer("First."), answer("Second."))
    async with thinking(llm, think="duplicate") as (conversation, client):
        await conversation.user_says("Is it ready?")
        assert contents(await client.until("AgentAudioDone")) == ["Is it ready?", "Second."]
        assert llm.bodies[0] == llm.bodies[1]
        assert conversation.problems == []


async def test_empty_duplicate_is_noted():
    llm = Llm(answer(), answer("Second."))
    async with thinking(llm, think="duplicate") as (conversation, _):
        await conversation.user_says("Is it ready?")
        assert conversation.problems == ["think: a duplicate request was answered with nothing"]


async def test_speculative_request_is_dropped():
    llm = Llm(ENDLESS, answer("Yes."))
    async with thinking(llm, think="speculative") as (conversation, client):
        await conversation.user_says("Is my bike ready?")
        await asyncio.wait_for(llm.dropped.wait(), 60)
        assert [body["messages"][-1]["content"] for body in llm.bodies] == ["Is my", "Is my bike ready?"]
        assert [exchange.dropped for exchange in conversation.think_requests] == [True, False]
        assert contents(await client.until("AgentAudioDone")) == ["Is my bike ready?", "Yes."]


async def test_interrupting_drops_the_request():
    llm = Llm(ENDLESS)
    async with thinking(llm) as (conversation, _):
        turn = asyncio.create_task(conversation.user_says("Is my bike"))
        await asyncio.wait_for(llm.asked.wait(), 60)
        await conversation.user_starts_speaking()
        await asyncio.wait_for(llm.dropped.wait(), 60)
        await turn


async def test_slow_request_is_warned_about():
    gate = asyncio.Event()
    async with thinking(Llm([gate, *answer("Yes.")]), slow_think_after=0.01) as (conversation, client):
        turn = asyncio.create_task(conversation.user_says("Is it ready?"))
        warnings = [(await client.until("Warning"))[-1] for _ in range(2)]
        gate.set()
        await turn
    assert {warning["code"] for warning in warnings} == {"SLOW_THINK_REQUEST"}
    assert warnings[1]["description"] == "Waited 0.02 seconds for the think provider."
