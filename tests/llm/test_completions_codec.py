import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.llm.chat import ChatRequest, Finished, TextDelta, ToolCallDelta, Usage
from gateway.llm.completions_codec import ChunkWriter, MalformedChatRequest, completion, read_request

TOOL = {"type": "function", "function": {"name": "order_status", "parameters": {"type": "object", "properties": {}}}}
CALL = {"id": "call_1", "type": "function", "function": {"name": "order_status", "arguments": '{"order": "A12"}'}}
USER = {"role": "user", "content": "Is it ready?"}
ANSWER = [
    TextDelta("Let me "),
    TextDelta("look."),
    ToolCallDelta(0, "call_1", "order_status", ""),
    ToolCallDelta(0, "", "", '{"order": '),
    ToolCallDelta(0, "", "", '"A12"}'),
    ToolCallDelta(1, "call_2", "hours", "{}"),
    Usage(40, 5, 30),
    Finished("tool_calls"),
]

texts = st.text(st.characters(exclude_categories=())).map(TextDelta)  # half surrogate pairs, too
fragments = st.builds(ToolCallDelta, st.integers(0, 2), st.sampled_from(["", "call_1"]), st.text(), st.text())
usages = st.just(Usage(40, 5, 30))
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["user", "assistant", "tool", "text"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["messages", "role", "content", "text", "tool_calls", "tools", "function", "name", "tool_choice"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=15,
)


def read(**body):
    return read_request(json.dumps(body).encode())


def chunks_of(stream):
    *records, done, after = stream.decode().split("\n\n")
    assert (done, after) == ("data: [DONE]", "")
    return [json.loads(record.removeprefix("data: ")) for record in records]


def written(events, model="claude-haiku-5-5", *, with_usage=False):
    writer = ChunkWriter(model, with_usage=with_usage)
    return chunks_of(b"".join([writer.start(), *map(writer.write, events), writer.end()]))


# In


def test_request_is_read():
    messages = [
        {"role": "system", "content": "You are a barber."},
        USER,
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "ready"},
    ]
    options = {"tools": [TOOL], "tool_choice": "required", "max_tokens": 300, "temperature": 0.6}
    request, streamed, with_usage = read(model="any", messages=messages, stream=True, reasoning_effort="low", **options)
    assert (streamed, with_usage) == (True, False)
    assert request == ChatRequest(tuple(messages), (TOOL,), "required", 300, 0.6, memory="")


def test_sparse_request_is_read():
    assert read(messages=[USER]) == (ChatRequest((USER,)), False, False)
    assert read(messages=[USER], tools=None, tool_choice=None, max_tokens=None, stream=None)[0] == ChatRequest((USER,))


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ({"role": "user", "content": None}, {"role": "user", "content": ""}),
        (
            {"role": "user", "content": [{"type": "text", "text": "Is it "}, {"type": "image"}, {"text": "ready?"}, 7]},
            USER,
        ),
        ({**USER, "name": "caller", "timestamp": 7}, USER),
        ({"role": "developer", "content": "Be brief."}, {"role": "system", "content": "Be brief."}),
        (
            {"role": "assistant", "content": "", "tool_calls": [{**CALL, "index": 0}], "refusal": None},
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
        ),
        ({"role": "assistant", "content": "Hello.", "tool_calls": []}, {"role": "assistant", "content": "Hello."}),
    ],
    ids=["null", "parts", "unknown keys", "developer", "tool call", "no tool call"],
)
def test_message_is_brought_into_form(given, kept):
    assert read(messages=[given])[0].messages == (kept,)


def test_newer_token_limit_counts():
    assert read(messages=[USER], max_completion_tokens=100, max_tokens=300)[0].max_tokens == 100
    assert read(messages=[USER], max_completion_tokens=None, max_tokens=300)[0].max_tokens == 300


def test_what_is_not_known_is_ignored():
    """An engine that gets an error ends the call."""
    custom = {"type": "custom", "custom": {"name": "shell"}}
    given = read(messages=[USER], tools=[custom, TOOL], tool_choice={"type": "allowed_tools"}).request
    assert (given.tools, given.tool_choice) == ((TOOL,), None)


@pytest.mark.parametrize(("arguments", "text"), [(None, ""), ({}, ""), ({"day": "é"}, '{"day":"é"}'), ("{", "{")])
def test_arguments_become_text(arguments, text):
    call = {**CALL, "function": {"name": "order_status", "arguments": arguments}}
    [message] = read(messages=[{"role": "assistant", "tool_calls": [call]}]).request.messages
    assert message["tool_calls"][0]["function"]["arguments"] == text


@pytest.mark.parametrize(
    ("options", "wanted"), [({"include_usage": True}, True), ({"include_usage": False}, False), ({}, False), (7, False)]
)
def test_usage_is_asked_for(options, wanted):
    assert read(messages=[USER], stream=True, stream_options=options).with_usage is wanted


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "the body is not JSON"),
        (b"{", "the body is not JSON"),
        (b"[" * 100_000, "the body is not JSON"),
        (b"\xff", "the body is not JSON"),
        (b"[]", "the body must be a JSON object"),
        (b"{}", "messages must be a list with at least one message"),
        (b'{"messages": []}', "messages must be a list with at least one message"),
        (b'{"messages": ["hello"]}', "messages[0] must be an object"),
        (
            b'{"messages": [{"role": "user"}, {"role": "caller"}]}',
            "messages[1].role must be one of system, developer, user, assistant, tool",
        ),
        (
            b'{"messages": [{"role": "user", "content": 7}]}',
            "messages[0].content must be text, a list of parts or null",
        ),
        (b'{"messages": [{"role": "tool"}]}', "messages[0].tool_call_id must be text"),
        (b'{"messages": [{"role": "assistant", "tool_calls": {"a": 1}}]}', "messages[0].tool_calls must be a list"),
        (
            b'{"messages": [{"role": "assistant", "tool_calls": [{"id": "1"}]}]}',
            "messages[0].tool_calls must have an id and a function with a name",
        ),
        (b'{"messages": [{"role": "user"}], "tools": {}}', "tools must be a list"),
        (b'{"messages": [{"role": "user"}], "tools": [{}]}', "tools must be functions with a name"),
        (b'{"messages": [{"role": "user"}], "max_tokens": 0}', "max_tokens must be a whole number above 0"),
        (b'{"messages": [{"role": "user"}], "max_tokens": true}', "max_tokens must be a whole number above 0"),
        (b'{"messages": [{"role": "user"}], "temperature": "hot"}', "temperature must be a number"),
        (b'{"messages": [{"role": "user"}], "temperature": true}', "temperature must be a number"),
    ],
)
def test_malformed_request_is_refused(body, problem):
    with pytest.raises(MalformedChatRequest) as raised:
        read_request(body)
    assert str(raised.value) == problem


@given(anything | st.fixed_dictionaries({"messages": st.lists(anything, min_size=1, max_size=3)}))
def test_no_request_breaks_the_reader(body):
    try:
        request = read_request(json.dumps(body).encode()).request
    except MalformedChatRequest:
        return
    assert all(isinstance(message["content"], str) or message["tool_calls"] for message in request.messages)


# Out


def test_chunks_fit_sdk_type():
    chunks = [ChatCompletionChunk.model_validate(chunk) for chunk in written(ANSWER)]
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert (deltas[0].role, deltas[0].content) == ("assistant", "")
    assert [delta.content for delta in deltas[1:3]] == ["Let me ", "look."]
    calls = [delta.tool_calls[0] for delta in deltas[3:7]]
    assert [(call.index, call.id, call.type, call.function.name, call.function.arguments) for call in calls] == [
        (0, "call_1", "function", "order_status", ""),
        (0, None, None, None, '{"order": '),
        (0, None, None, None, '"A12"}'),
        (1, "call_2", "function", "hours", "{}"),
    ]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * 7 + ["tool_calls"]


def test_usage_comes_with_the_reason():
    """In a chunk that has a choice: the engine can't do with one that has none."""
    *others, last = [ChatCompletionChunk.model_validate(chunk) for chunk in written(ANSWER, with_usage=True)]
    assert (last.usage.prompt_tokens, last.usage.completion_tokens, last.usage.total_tokens) == (40, 5, 45)
    assert last.choices[0].finish_reason == "tool_calls"
    assert {chunk.usage for chunk in others} == {None}


@given(st.lists(texts | fragments | usages), st.sampled_from([[], [Finished("length")]]))
def test_every_stream_is_well_formed(events, job):
    """Whatever an upstream does: one id, a choice in each chunk, one finish chunk, and the words as they came."""
    chunks = written([*events, *job])
    assert len({(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks}) == 1
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    assert len(choices) == len(chunks)
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["length" if job else "stop"]
    said = [choice["delta"].get("content", "") for choice in choices if "tool_calls" not in choice["delta"]]
    assert [*filter(None, said)] == [event.text for event in events if isinstance(event, TextDelta) and event.text]


def test_completion_fits_sdk_type():
    answer = ChatCompletion.model_validate_json(completion(ANSWER, "grok-4.3"))
    choice = answer.choices[0]
    assert (answer.model, choice.finish_reason, choice.message.content) == ("grok-4.3", "tool_calls", "Let me look.")
    assert [call.model_dump(exclude_none=True) for call in choice.message.tool_calls] == [
        CALL,
        {"id": "call_2", "type": "function", "function": {"name": "hours", "arguments": "{}"}},
    ]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (40, 5, 45)
    assert answer.usage.prompt_tokens_details.cached_tokens == 30


@pytest.mark.parametrize(
    ("events", "content"), [([Finished("stop")], ""), ([ToolCallDelta(0, "c", "n", ""), Finished("stop")], None)]
)
def test_completion_without_text_is_whole(events, content):
    answer = json.loads(completion(events, "grok-4.3"))
    ChatCompletion.model_validate(answer)
    assert answer["choices"][0]["message"]["content"] == content
    assert "usage" not in answer


def test_usage_may_have_its_own_chunk():
    writer = ChunkWriter("claude-haiku-5-5", with_usage=True, usage_apart=True)
    stream = [writer.start(), writer.write(Usage(9, 4, 2)), writer.write(Finished("stop")), writer.end()]
    *_, finish, usage = chunks_of(b"".join(stream))
    assert finish["choices"][0]["finish_reason"] == "stop" and "usage" not in finish
    assert (usage["choices"], usage["usage"]["total_tokens"]) == ([], 13)
