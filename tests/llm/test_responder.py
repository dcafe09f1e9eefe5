import asyncio
import contextlib
import logging
import time

import pytest

from gateway.llm.agent_llm import AgentLlm
from gateway.llm.anthropic import AnthropicUpstream
from gateway.llm.chat import ChatRequest, Finished, TextDelta, ToolCallDelta, Usage
from gateway.llm.openai import OpenAiUpstream
from gateway.llm.responder import Responder, TurnRecall, hashed_caller
from gateway.settings import Secret
from tests.fakes.llm import FakeLlm
from tests.fakes.llm_script import Answer, Pace, ToolCall

SHORT, SLOW, LONG = 0.03, 0.3, 10.0
SORRY, ONE_MOMENT = "Sorry, say it again?", "One moment, please."
PROMPT = {"role": "system", "content": "You are a barber."}
TOOL = {"type": "function", "function": {"name": "order_status", "parameters": {"type": "object", "properties": {}}}}


def question(text="Is it ready?", **more):
    return ChatRequest((PROMPT, {"role": "user", "content": text}), **more)


class Brains:
    """Language models, and thinkers that ask them in this order."""

    def __init__(self, stack):
        self._stack = stack

    async def llm(self, answer="It is ready.", **options):
        llm = await self._stack.enter_async_context(FakeLlm(**options))
        llm.answers(answer)
        return llm

    def reporting(self, *llms, **options):
        """A responder, and the attempts that it reports."""
        responder, attempts = self.responder(*llms, **options), []
        responder.report_attempts(attempts.append)
        return responder, attempts

    def responder(self, *llms, first_token_seconds=LONG, one_moment="", dialect="openai", redacts=True, **options):
        upstreams = tuple(self._upstream(dialect, f"llm-{number}", llm.url) for number, llm in enumerate(llms))
        agent_llm = AgentLlm(upstreams, first_token_seconds, one_moment, SORRY, "en", redacts=redacts)
        responder = Responder("maya", "", agent_llm, **options)
        self._stack.callback(responder.close)
        return responder

    def _upstream(self, dialect, name, url):
        key = Secret("test-key")
        openai = dialect == "openai"
        upstream = (
            OpenAiUpstream(name, f"{url}/v1", "m", key, options={}) if openai else AnthropicUpstream(url, "", key)
        )
        self._stack.push_async_callback(upstream.close)
        return upstream


@pytest.fixture
async def agent_llms():
    async with contextlib.AsyncExitStack() as stack:
        yield Brains(stack)


async def ask(responder, request=None):
    return [event async for event in responder.answer(request or question())]


def outcomes(attempts):
    return [(attempt.model.provider, attempt.outcome, attempt.error) for attempt in attempts]


def text_of(events):
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def calls_of(events):
    return [event for event in events if isinstance(event, ToolCallDelta)]


# Answers


async def test_answer_can_be_spoken(agent_llms):
    responder = agent_llms.responder(await agent_llms.llm("**Sure!** It's at https://example.com/a?b, see *there*."))
    events = await ask(responder)
    assert text_of(events) == "Sure! It's at example dot com, see there."
    assert events[-1] == Finished("stop")


async def test_usage_is_passed_on(agent_llms):
    events = await ask(agent_llms.responder(await agent_llms.llm("Yes.")))
    [usage] = (event for event in events if isinstance(event, Usage))
    assert usage.completion_tokens == 2  # pieces of the simulator's text


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_tool_calls_pass_unchanged(agent_llms, dialect):
    arguments = '{"order": "**A12**"}'
    llm = await agent_llms.llm(Answer("Let me **look**.", tools=(ToolCall("order_status", arguments, "call_1"),)))
    events = await ask(agent_llms.responder(llm, dialect=dialect), question(tools=(TOOL,)))
    assert text_of(events) == "Let me look."
    first, *rest = calls_of(events)
    assert (first.index, first.id, first.name) == (0, "call_1", "order_status")
    assert "".join(call.arguments for call in (first, *rest)) == arguments
    assert events[-1] == Finished("tool_calls")


async def test_unknown_tool_is_not_called(agent_llms):
    """The engine would end its session."""
    calls = (ToolCall("no_such_tool", "{}", "call_1"), ToolCall("order_status", "{}", "call_2"))
    events = await ask(agent_llms.responder(await agent_llms.llm(Answer(tools=calls))), question(tools=(TOOL,)))
    assert {(call.index, call.id) for call in calls_of(events) if call.id} == {(0, "call_2")}
    assert events[-1] == Finished("tool_calls")


@pytest.mark.parametrize(("text", "said"), [("Let me see.", "Let me see."), ("", SORRY)])
async def test_answer_with_nothing_to_do_just_ends(agent_llms, text, said):
    llm = await agent_llms.llm(Answer(text, tools=(ToolCall("no_such_tool"),)))
    events = await ask(agent_llms.responder(llm), question(tools=(TOOL,)))
    assert (text_of(events), calls_of(events), events[-1]) == (said, [], Finished("stop"))


async def test_memory_goes_to_every_upstream(agent_llms):
    async def search(said):
        return [f"Ana asked {said!r} before"]

    first, second = await agent_llms.llm(), await agent_llms.llm()
    first.fails(500)
    await ask(agent_llms.responder(first, second, memory=TurnRecall(search, seconds=LONG)))
    for llm in (first, second):
        prompt, memory, said = llm.requests[0].body["messages"]
        assert (prompt, said["role"]) == (PROMPT, "user")
        assert "\nAna asked 'Is it ready?' before\n" in memory["content"]


@pytest.mark.parametrize(("redacts", "sent"), [(True, "It's [pin removed]."), (False, "It's four seven one one.")])
async def test_secret_is_removed_from_requests(agent_llms, redacts, sent):
    llm = await agent_llms.llm()
    asked = {"role": "assistant", "content": "What is your PIN?"}
    said = {"role": "user", "content": "It's four seven one one."}
    await ask(agent_llms.responder(llm, redacts=redacts), ChatRequest((PROMPT, asked, said)))
    assert llm.requests[0].body["messages"] == [PROMPT, asked, {**said, "content": sent}]


async def test_caller_is_known_by_a_hash():
    key = hashed_caller("maya", "+12025550143", Secret("pepper"))
    assert key == hashed_caller("maya", "+12025550143", Secret("pepper"))
    others = [("sam", "+12025550143", "pepper"), ("maya", "+12025550144", "pepper"), ("maya", "+12025550143", "salt")]
    assert len({key, *(hashed_caller(agent, caller, Secret(secret)) for agent, caller, secret in others)}) == 4
    assert "5550143" not in key
    assert hashed_caller("maya", "", Secret("pepper")) == ""


async def test_turn_is_watched(agent_llms):
    class Watch:
        def __init__(self):
            self.seen = []

        def llm_request(self, at):
            self.seen.append(("request", at))

        def first_token(self, at):
            self.seen.append(("first token", at))

        def one_moment(self, text):
            self.seen.append((text, time.monotonic()))

    watch = Watch()
    responder = agent_llms.responder(await agent_llms.llm())
    responder.observe_latency(watch)
    await asyncio.gather(ask(responder), ask(responder))
    assert [what for what, _ in watch.seen] == ["request", "first token"]
    assert watch.seen == sorted(watch.seen, key=lambda seen: seen[1])
    watch.seen.clear()
    slow = await agent_llms.llm(pace=Pace(before_first_token=SLOW))
    responder = agent_llms.responder(slow, first_token_seconds=SHORT, one_moment=ONE_MOMENT)
    responder.observe_latency(watch)
    await ask(responder)
    assert [what for what, _ in watch.seen] == ["request", ONE_MOMENT, "first token"]
    watch.seen.clear()
    calling = agent_llms.responder(await agent_llms.llm(Answer(tools=(ToolCall("order_status", "{}"),))))
    calling.observe_latency(watch)
    await ask(calling, question(tools=(TOOL,)))
    assert [what for what, _ in watch.seen] == ["request"]


# Sharing and dropping


async def test_equal_requests_share_one_answer(agent_llms):
    llm = await agent_llms.llm()
    responder = agent_llms.responder(llm)
    answers = await asyncio.gather(*(ask(responder) for _ in range(3)))
    assert [text_of(answer) for answer in answers] == ["It is ready."] * 3
    assert answers[0] == answers[1] == answers[2]
    assert len(llm.requests) == 1


async def test_late_duplicate_gets_all(agent_llms):
    llm = await agent_llms.llm()
    responder = agent_llms.responder(llm)
    assert await ask(responder) == await ask(responder)
    assert len(llm.requests) == 1


async def test_answer_is_not_kept_for_long(agent_llms):
    llm = await agent_llms.llm()
    responder = agent_llms.responder(llm, kept_seconds=0)
    await ask(responder)
    await llm.idle()
    await ask(responder)
    assert (len(llm.requests), llm.connections) == (2, 1)


async def test_other_requests_are_asked_beside(agent_llms):
    llm = await agent_llms.llm(pace=Pace(hangs="after first token"))
    responder = agent_llms.responder(llm)
    requests = [question("Is it"), question("Is it ready?"), question("Is it ready?", tools=(TOOL,))]
    answers = [responder.answer(request) for request in requests]
    for answer in answers:
        await anext(answer)
    assert llm.most_parallel == 3
    for answer in answers:
        await answer.aclose()


async def test_last_reader_ends_the_upstream(agent_llms):
    llm = await agent_llms.llm(pace=Pace(hangs="after first token"))
    responder = agent_llms.responder(llm)
    first, second = responder.answer(question()), responder.answer(question())
    assert await anext(first) == await anext(second) == TextDelta("It")
    await first.aclose()
    assert llm.parallel == 1
    await second.aclose()
    await llm.idle()
    assert llm.requests[0].disconnected_at is not None


@pytest.mark.parametrize("hangs", ["before headers", "before first token"])
async def test_request_dropped_in_silence_ends_upstream(agent_llms, hangs):
    llm = await agent_llms.llm(pace=Pace(hangs=hangs))
    asking = asyncio.create_task(ask(agent_llms.responder(llm)))
    await llm.received(1)
    asking.cancel()
    await llm.idle()
    assert llm.requests[0].disconnected_at is not None


async def test_dropped_answer_is_not_shared(agent_llms):
    llm = await agent_llms.llm(pace=Pace(hangs="after first token"))
    responder = agent_llms.responder(llm)
    dropped = responder.answer(question())
    await anext(dropped)
    await dropped.aclose()
    llm.pace = Pace()
    assert text_of(await ask(responder)) == "It is ready."
    assert len(llm.requests) == 2


async def test_end_of_call_ends_answers(agent_llms):
    llm = await agent_llms.llm(pace=Pace(hangs="after first token"))
    responder = agent_llms.responder(llm)
    answer = responder.answer(question())
    await anext(answer)
    responder.close()
    assert [event async for event in answer] == [Finished("stop")]
    await llm.idle()
    assert llm.requests[0].disconnected_at is not None


# Standing in


@pytest.mark.parametrize("status", [400, 401, 429, 500, 529])
async def test_failing_upstream_is_stood_in_for(agent_llms, status):
    first, second = await agent_llms.llm("No."), await agent_llms.llm()
    first.fails(status)
    assert text_of(await ask(agent_llms.responder(first, second))) == "It is ready."


@pytest.mark.parametrize(
    "answer",
    [
        Answer("It is broken.", breaks_after=0),
        Answer(""),
        Answer("", finish="content_filter"),
        Answer("<think>Is it ready? Let me see.</think>"),
        Answer(" \n\n"),
    ],
)
async def test_wordless_upstream_is_stood_in_for(agent_llms, answer):
    first, second = await agent_llms.llm(answer), await agent_llms.llm()
    assert text_of(await ask(agent_llms.responder(first, second))) == "It is ready."


async def test_slow_upstream_is_overtaken(agent_llms):
    first, second = await agent_llms.llm(pace=Pace(hangs="before first token")), await agent_llms.llm("At nine.")
    events = await ask(agent_llms.responder(first, second, first_token_seconds=SHORT))
    assert (text_of(events), events[-1]) == ("At nine.", Finished("stop"))
    await first.idle()
    assert first.requests[0].disconnected_at is not None


async def test_slow_upstream_may_still_be_first(agent_llms):
    first, second = (
        await agent_llms.llm(pace=Pace(before_first_token=SLOW)),
        await agent_llms.llm(pace=Pace(hangs="before headers")),
    )
    # On a slow machine the caller may be asked to wait, too.
    assert text_of(await ask(agent_llms.responder(first, second, first_token_seconds=SHORT))).endswith("It is ready.")
    await second.idle()
    assert second.requests[0].disconnected_at is not None


async def test_thoughts_are_not_a_first_word(agent_llms):
    """A model that thinks aloud keeps the caller waiting like one that says nothing."""
    first = await agent_llms.llm("<think>Let me see", pace=Pace(hangs="after first token", characters=9))
    second = await agent_llms.llm("At nine.")
    assert text_of(await ask(agent_llms.responder(first, second, first_token_seconds=SHORT))) == "At nine."


async def test_tool_call_is_a_first_word(agent_llms):
    answer = Answer(tools=(ToolCall("order_status", "{}"),))
    first, second = await agent_llms.llm(answer, pace=Pace(between_tokens=2.0)), await agent_llms.llm()
    events = await ask(agent_llms.responder(first, second, first_token_seconds=1.5), question(tools=(TOOL,)))
    assert (text_of(events), events[-1]) == ("", Finished("tool_calls"))
    assert second.requests == []


async def test_one_moment_is_said_once(agent_llms):
    llms = [await agent_llms.llm(pace=Pace(before_first_token=SLOW)) for _ in range(3)]
    responder = agent_llms.responder(*llms, first_token_seconds=SHORT, one_moment=ONE_MOMENT)
    assert text_of(await ask(responder)) == f"{ONE_MOMENT} It is ready."


async def test_one_moment_is_not_delayed(agent_llms):
    """Where there is no second language model, the caller hears it when that one would have been asked."""
    llm = await agent_llms.llm(pace=Pace(hangs="before first token"))
    responder = agent_llms.responder(llm, first_token_seconds=SLOW, one_moment=ONE_MOMENT, longest_silence=1.5 * SLOW)
    assert text_of(await ask(responder)) == f"{ONE_MOMENT} {SORRY}"


@pytest.mark.parametrize("count", [1, 3])
async def test_sorry_is_said_when_all_have_failed(agent_llms, caplog, count):
    llms = [await agent_llms.llm() for _ in range(count)]
    for llm in llms:
        llm.fails(500)
    with caplog.at_level(logging.DEBUG, logger="gateway"):
        assert await ask(agent_llms.responder(*llms)) == [TextDelta(SORRY), Finished("stop")]
    logged = [(record.getMessage(), record.upstream, record.reason) for record in caplog.records]
    names = [f"llm-{number}" for number in range(count)]
    assert logged == [("language model failed", name, f"{name} answered 500") for name in names]


async def test_sorry_is_said_when_no_model_answers(agent_llms):
    llm = await agent_llms.llm(pace=Pace(hangs="before first token"))
    responder = agent_llms.responder(llm, first_token_seconds=SHORT, one_moment=ONE_MOMENT, longest_silence=SLOW)
    assert text_of(await ask(responder)) == f"{ONE_MOMENT} {SORRY}"
    await llm.idle()
    assert llm.requests[0].disconnected_at is not None


@pytest.mark.parametrize("dialect", ["openai", "anthropic"])
async def test_broken_answer_ends_in_good_order(agent_llms, dialect):
    """Nobody else can end the sentence that the caller has heard half of."""
    first, second = await agent_llms.llm(Answer("It is ready.", breaks_after=2)), await agent_llms.llm()
    events = await ask(agent_llms.responder(first, second, dialect=dialect))
    assert (text_of(events), events[-1]) == (f"It is . {SORRY}", Finished("stop"))
    assert second.requests == []


async def test_broken_tool_call_is_not_passed_on(agent_llms):
    call = ToolCall("order_status", '{"order": "A12"}')
    llm = await agent_llms.llm(Answer(tools=(call,)), pace=Pace(closes_after=3))
    events = await ask(agent_llms.responder(llm), question(tools=(TOOL,)))
    assert events == [TextDelta(SORRY), Finished("stop")]


async def test_broken_tool_call_is_stood_in_for(agent_llms):
    """Nothing of it was heard, so another may answer."""
    call = ToolCall("order_status", '{"order": "A12"}')
    first, second = await agent_llms.llm(Answer(tools=(call,)), pace=Pace(closes_after=3)), await agent_llms.llm()
    events = await ask(agent_llms.responder(first, second), question(tools=(TOOL,)))
    assert (text_of(events), events[-1]) == ("It is ready.", Finished("stop"))


# Attempts


async def test_each_attempt_is_reported(agent_llms):
    first, second, third = [await agent_llms.llm() for _ in range(3)]
    first.fails(500)
    second.fails(401)
    responder, attempts = agent_llms.reporting(first, second, third)
    await ask(responder)
    assert outcomes(attempts) == [("llm-0", "failed", "500"), ("llm-1", "failed", "401"), ("llm-2", "answered", "")]
    assert [attempt.model.model for attempt in attempts] == ["m"] * 3
    assert [attempt.first_token is None for attempt in attempts] == [True, True, False]
    assert 0 < attempts[-1].first_token <= attempts[-1].seconds


async def test_tokens_of_an_attempt_are_reported(agent_llms):
    responder, attempts = agent_llms.reporting(await agent_llms.llm())
    [usage] = [event for event in await ask(responder) if isinstance(event, Usage)]
    assert [attempt.usage for attempt in attempts] == [usage]


async def test_wordless_and_broken_attempts_have_failed(agent_llms):
    first, second = await agent_llms.llm(""), await agent_llms.llm(Answer("It is ready.", breaks_after=2))
    responder, attempts = agent_llms.reporting(first, second)
    await ask(responder)
    assert outcomes(attempts) == [("llm-0", "failed", "LlmRefused"), ("llm-1", "failed", "LlmUnavailable")]


async def test_model_that_was_not_asked_is_not_reported(agent_llms):
    responder, attempts = agent_llms.reporting(await agent_llms.llm(), await agent_llms.llm())
    await ask(responder)
    assert outcomes(attempts) == [("llm-0", "answered", "")]


async def test_overtaken_slow_model_has_timed_out(agent_llms):
    first, second = await agent_llms.llm(pace=Pace(hangs="before first token")), await agent_llms.llm("At nine.")
    responder, attempts = agent_llms.reporting(first, second, first_token_seconds=SHORT)
    await ask(responder)
    await first.idle()
    assert ("llm-0", "failed", "timeout") in outcomes(attempts)
    assert ("llm-1", "answered", "") in outcomes(attempts)


async def test_model_that_never_answers_has_timed_out(agent_llms):
    llm = await agent_llms.llm(pace=Pace(hangs="before first token"))
    responder, attempts = agent_llms.reporting(llm, longest_silence=SHORT)
    assert text_of(await ask(responder)) == SORRY
    assert outcomes(attempts) == [("llm-0", "failed", "timeout")]


@pytest.mark.parametrize("hangs", ["before first token", "after first token"])
async def test_dropped_attempt_is_cancelled(agent_llms, hangs):
    llm = await agent_llms.llm(pace=Pace(hangs=hangs))
    responder, attempts = agent_llms.reporting(llm)
    asking = asyncio.create_task(ask(responder))
    await llm.received(1)
    asking.cancel()
    await llm.idle()
    assert outcomes(attempts) == [("llm-0", "cancelled", "")]


async def test_attempt_is_over_when_its_answer_is(agent_llms):
    """Not only when the connection can be used again."""
    responder, attempts = agent_llms.reporting(await agent_llms.llm())
    answer = responder.answer(question())
    async for event in answer:
        if isinstance(event, Finished):
            await asyncio.sleep(0)
            assert outcomes(attempts) == [("llm-0", "answered", "")]
    assert len(attempts) == 1


async def test_our_own_mistake_is_not_heard(agent_llms, caplog):
    class Mistaken:
        name = model = "mistaken"

        def answer(self, request, caller_key):
            raise KeyError("a mistake")

    brain = AgentLlm((Mistaken(),), LONG, "", SORRY, "en")
    responder, attempts = Responder("maya", "", brain), []
    responder.report_attempts(attempts.append)
    assert await ask(responder) == [TextDelta(SORRY), Finished("stop")]
    assert outcomes(attempts) == [("mistaken", "failed", "KeyError")]
    assert [record.getMessage() for record in caplog.records] == ["answer failed"]


async def test_mistake_in_memory_costs_no_answer(agent_llms, caplog):
    async def search(said):
        raise KeyError("a mistake")

    responder = agent_llms.responder(await agent_llms.llm(), memory=TurnRecall(search))
    assert text_of(await ask(responder)) == "It is ready."
    assert [(record.getMessage(), record.error) for record in caplog.records] == [
        ("memory could not be searched", "KeyError")
    ]
