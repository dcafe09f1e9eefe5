from gateway.engines.agent_settings import AgentFunction
from gateway.engines.events import FunctionCall
from gateway.engines.local_mind import LocalMinds
from gateway.llm.agent_llm import AgentLlm
from gateway.llm.chat import ChatRequest, Finished, TextDelta, ToolCallDelta
from gateway.llm.endpoint_tokens import EndpointTokens
from gateway.llm.responder import Responder

FUNCTION = AgentFunction("order_status", "Look an order up.", {"type": "object"})


class FakeUpstream:
    name = model = "fake"

    def __init__(self, *events):
        self.events, self.asked = events, []

    async def answer(self, request, caller_key):
        self.asked.append(request)
        for event in (*self.events, Finished("stop")):
            yield event


def minds(upstream, **brain):
    endpoint_tokens = EndpointTokens()
    responder = Responder("maya", "", AgentLlm((upstream,), 5.0, "", "Sorry.", "en", **brain))
    return LocalMinds(endpoint_tokens), endpoint_tokens.open(responder)


async def test_text_and_whole_calls_come_back():
    upstream = FakeUpstream(
        TextDelta("One moment."), ToolCallDelta(0, "7", "order_status", '{"or'), ToolCallDelta(0, "", "", 'der": 1}')
    )
    finder, bearer = minds(upstream)
    mind = await finder.find(bearer)
    messages = [{"role": "user", "content": "Is it ready?"}]
    pieces = [piece async for piece in mind.answer(messages, [FUNCTION])]
    assert "".join(piece for piece in pieces if isinstance(piece, str)) == "One moment."
    assert pieces[-1] == FunctionCall("7", "order_status", '{"order": 1}')
    tool = {"name": "order_status", "description": "Look an order up.", "parameters": {"type": "object"}}
    assert upstream.asked == [ChatRequest(tuple(messages), tools=({"type": "function", "function": tool},))]


async def test_only_a_live_call_has_a_mind():
    finder, bearer = minds(FakeUpstream(), opens=True)
    assert (await finder.find(bearer)).opens
    assert await finder.find("another") is None
