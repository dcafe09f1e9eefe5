"""Turns, speech, functions and injections of the simulated Voice Agent, seen from a plain WebSocket."""

import asyncio
import copy

import pytest

from gateway.audio import SILENCE_FRAME
from tests.fakes.deepgram import LATE_AUDIO, LATE_TEXT, FakeDeepgram, speech
from tests.fakes.deepgram_client import KEY, QUIET, SETTINGS, Client, connected, contents, kinds, plain, sound

HELLO = SETTINGS["agent"]["greeting"]
LOUD_FRAME = speech("eight ch")


# Speech


async def test_greeting_is_spoken_in_odd_frames():
    async with connected(SETTINGS) as (_, client):
        frames = await client.until("AgentAudioDone")
    expected = ["ConversationText", "audio", "History", "LatencyReport", "LatencyReport", "AgentAudioDone"]
    assert kinds(frames) == expected
    assert frames[0]["content"] == HELLO
    assert [len(frame) for frame in frames if isinstance(frame, bytes)] == [1, 159, 160, 240]
    assert sound(frames) == speech(HELLO)


async def test_greeting_audio_can_come_first():
    async with connected(SETTINGS, text_first=False, latency_reports=False) as (_, client):
        frames = await client.until("AgentAudioDone")
    assert kinds(frames) == ["audio", "ConversationText", "History", "AgentAudioDone"]


async def test_answer_goes_sentence_by_sentence():
    async with connected(latency_reports=False) as (conversation, client):
        await conversation.agent_says("On Friday. At nine?", audio=bytes(range(190)))
        frames = await client.until("AgentAudioDone")
    assert kinds(frames) == ["ConversationText", "audio", "ConversationText", "audio", "History", "AgentAudioDone"]
    assert [frame["content"] for frame in frames if kinds([frame]) == ["ConversationText"]] == [
        "On Friday.",
        "At nine?",
    ]
    assert sound(frames) == bytes(range(190))


def test_speech_is_loud_and_distinct():
    assert len(speech("Hello.")) == 120
    assert speech("Hello.") == speech("Hello.") != speech("Hallo.")
    assert not {0x7F, 0xFF} & set(speech(HELLO))


async def test_plain_turn_follows_documented_order():
    async with connected(script={"Is it ready?": "On Friday."}) as (conversation, client):
        await conversation.user_says("Is it ready?")
        frames = [frame for frame in await client.until("AgentAudioDone") if kinds([frame]) != ["LatencyReport"]]
    head = ["UserStartedSpeaking", "EndOfTurn", "ConversationText", "History"]
    assert kinds(frames) == [*head, "ConversationText", "audio", "History", "AgentAudioDone"]
    assert contents(frames) == ["Is it ready?", "On Friday."]


async def test_script_may_be_a_function():
    async def goodbye(conversation):
        (content,) = await conversation.call_functions(["end_call"])
        return f"Goodbye: {content}"

    async with connected(script={"Bye.": goodbye}) as (conversation, client):
        turn = asyncio.create_task(conversation.user_says("Bye."))
        request = (await client.until("FunctionCallRequest"))[-1]["functions"][0]
        await client.send({"type": "FunctionCallResponse", "id": request["id"], "name": "end_call", "content": "ok"})
        await turn
        assert conversation.sent("ConversationText")[-1]["content"] == "Goodbye: ok"


async def test_failure_in_script_reaches_test():
    def broken(conversation):
        raise ValueError("in the script")

    with pytest.raises(ExceptionGroup, match="the simulated engine failed"):
        async with connected(script={"Bye.": broken}) as (conversation, _):
            await conversation.user_says("Bye.")


async def test_history_can_be_declined():
    async with connected({**QUIET, "flags": {"history": False}}) as (conversation, _):
        await conversation.user_says("Hello.")
        assert conversation.sent("History") == []
        assert conversation.history[-1]["content"] == "Hello."


async def test_barge_in_leaks_late_parts():
    async with connected(latency_reports=False) as (conversation, client):
        await conversation.agent_says("It will be", done=False)
        await client.until("History")
        await conversation.barge_in(audio_done=True)
        await conversation.user_says("When?")
        after = await client.until("EndOfTurn")
    assert kinds(after) == ["UserStartedSpeaking", "audio", "ConversationText", "AgentAudioDone", "EndOfTurn"]
    assert sound(after) == LATE_AUDIO
    assert after[-3]["content"] == LATE_TEXT


async def test_interrupted_speech_stops():
    async with connected(speech_rate=1.0) as (conversation, client):
        speaking = asyncio.create_task(conversation.agent_says("One. Two.", audio=bytes(80_000)))
        await client.until("ConversationText")
        await conversation.user_starts_speaking()
        await speaking
        assert len(conversation.sent("ConversationText")) == 1
        assert conversation.sent("AgentAudioDone") == []
        assert conversation.history[-1]["content"] == "One."


# Listening


async def test_loud_audio_makes_turns():
    async with connected(listen_by_energy=True, turns=["Is it ready?"]) as (_, client):
        for frame in [SILENCE_FRAME] * 3 + [LOUD_FRAME] * 5 + [SILENCE_FRAME] * 24:
            await client.send(frame)
        await client.until("UserStartedSpeaking")
        await client.send(SILENCE_FRAME)
        assert (await client.until("ConversationText"))[-1]["content"] == "Is it ready?"


async def test_pause_without_audio_keeps_turn_open():
    async with connected(listen_by_energy=True, turns=["Is it ready?"]) as (conversation, client):
        for frame in [LOUD_FRAME] * 5 + [SILENCE_FRAME] * 24:
            await client.send(frame)
        await conversation.hears(29 * 160)
        assert conversation.user_speaking
        assert conversation.sent("ConversationText") == []


async def test_loud_audio_interrupts_agent():
    async with connected(listen_by_energy=True) as (conversation, client):
        await conversation.agent_says("It will be", done=False)
        for _ in range(3):
            await client.send(LOUD_FRAME)
        frames = await client.until("UserStartedSpeaking")
        assert (await client.until("ConversationText"))[-1]["content"] == LATE_TEXT
    assert kinds(frames)[:2] == ["ConversationText", "audio"]


async def test_turn_may_get_no_text():
    async with connected(listen_by_energy=True, turns=[None]) as (conversation, client):
        for frame in [LOUD_FRAME] * 3 + [SILENCE_FRAME] * 25:
            await client.send(frame)
        await conversation.hears(28 * 160)
        assert len(conversation.sent("UserStartedSpeaking")) == 1
        assert conversation.sent("EndOfTurn") == []


async def test_forced_end_closes_turn():
    async with connected(turns=["Is it"]) as (conversation, client):
        await conversation.user_starts_speaking()
        await client.send({"type": "ForceEndTurn"})
        assert (await client.until("EndOfTurn"))[-1]["trigger"] == "manual"
        assert (await client.until("ConversationText"))[-1]["content"] == "Is it"


async def test_audio_is_counted():
    async with connected() as (conversation, client):
        for frame in (LOUD_FRAME, SILENCE_FRAME, b"x"):
            await client.send(frame)
        assert await conversation.hears(321) == LOUD_FRAME + SILENCE_FRAME + b"x"
        assert [audio for _, audio in conversation.frames] == [LOUD_FRAME, SILENCE_FRAME, b"x"]
        assert len(conversation.gaps) == 2
        assert [entry.frame for entry in conversation.log if entry.direction == "in"][1:] == [
            audio for _, audio in conversation.frames
        ]


# Functions


async def test_functions_are_asked_and_answered():
    async with connected() as (conversation, client):
        calls = [{"name": "order_status", "arguments": {"order": "A12"}}, "end_call"]
        asked = asyncio.create_task(conversation.call_functions(calls))
        functions = (await client.until("FunctionCallRequest"))[-1]["functions"]
        for function in reversed(functions):
            content = f"done {function['id']}"
            response = {"id": function["id"], "name": function["name"], "content": content}
            await client.send({"type": "FunctionCallResponse", **response})
        assert await asked == ["done fc_1", "done fc_2"]
        assert functions[0]["arguments"] == '{"order": "A12"}'
        assert conversation.sent("History")[-1]["function_calls"][1]["response"] == "done fc_2"
        assert conversation.problems == []


async def test_unanswered_function_is_noted():
    async with connected() as (conversation, _):
        with pytest.raises(TimeoutError):
            await conversation.call_functions(["end_call"], timeout=0.01)
        assert conversation.problems == ["function call fc_1 was not answered"]


@pytest.mark.parametrize(
    ("response", "problem"),
    [
        ({"id": "fc_9", "name": "end_call"}, "response to an unknown function call 'fc_9'"),
        ({"name": "end_call"}, "response to an unknown function call ''"),
        ({"id": "fc_1", "name": "hang_up"}, "response to fc_1 names 'hang_up', not 'end_call'"),
        ({"id": "fc_2", "name": "lookup"}, "response to fc_2, which is not for the client"),
        ({"id": "fc_3", "name": "end_call"}, "response to fc_3, which was cancelled"),
        ({"id": "fc_4", "name": "end_call"}, "second response to fc_4"),
    ],
)
async def test_wrong_function_response_is_noted(response, problem):
    async with connected() as (conversation, client):
        lookup = {"name": "lookup", "client_side": False, "response": "found"}
        await conversation.request_functions(["end_call", lookup, "end_call", "end_call"])
        await conversation.cancel_functions(["fc_3"])
        for answer in ({"id": "fc_4", "name": "end_call"}, response):
            await client.send({"type": "FunctionCallResponse", "content": "ok", **answer})
        await conversation.until(lambda: conversation.problems)
        assert conversation.problems == [problem]


async def test_own_functions_need_no_answer():
    async with connected() as (conversation, client):
        lookup = {"name": "lookup", "client_side": False, "response": "found"}
        assert await conversation.call_functions([lookup]) == ["found"]
        response = (await client.until("FunctionCallResponse"))[-1]
        assert response == {"type": "FunctionCallResponse", "id": "fc_1", "name": "lookup", "content": "found"}


async def test_cancelled_function_is_not_awaited():
    async with connected() as (conversation, client):
        asked = asyncio.create_task(conversation.call_functions(["end_call"]))
        await client.until("FunctionCallRequest")
        await conversation.cancel_functions(["fc_1"])
        assert await asked == []
        cancelled = (await client.until("FunctionCallCancelled"))[-1]
        assert cancelled["functions"] == [{"id": "fc_1", "name": "end_call"}]


@pytest.mark.parametrize(("name", "cancelled"), [("order_status", ["fc_1"]), ("end_call", [])])
async def test_resumed_turn_cancels_speculative_calls(name, cancelled):
    """A function that waits for the end of the turn is never speculative."""
    script = {"Is it": lambda conversation: conversation.call_functions([name])}
    async with connected(script=script) as (conversation, client):
        turn = asyncio.create_task(conversation.user_says("Is it"))
        await client.until("FunctionCallRequest")
        await conversation.user_starts_speaking()
        await turn
        sent = conversation.sent("FunctionCallCancelled")
        assert [function["id"] for message in sent for function in message["functions"]] == cancelled


async def test_function_response_can_be_echoed():
    async with connected(echo_functions=True) as (conversation, client):
        await conversation.request_functions(["end_call"])
        response = {"type": "FunctionCallResponse", "id": "fc_1", "name": "end_call", "content": "ok"}
        await client.send(response)
        assert (await client.until("FunctionCallResponse"))[-1] == response


async def test_hanging_up_unanswered_is_noted():
    async with connected() as (conversation, client):
        await conversation.request_functions(["end_call"])
        await client.socket.close()
        await conversation.wait_closed()
        assert conversation.problems == ["function call fc_1 was never answered"]


# Injections and updates


async def test_injected_user_message_is_answered():
    async with connected(script={"Hello?": "Yes?"}) as (_, client):
        await client.send({"type": "InjectUserMessage", "content": "Hello?"})
        frames = await client.until("AgentAudioDone")
    assert frames[0] == {"type": "EndOfTurn", "trigger": "manual"}
    assert contents(frames) == ["Hello?", "Yes?"]


async def test_injected_agent_message_is_spoken():
    async with connected() as (_, client):
        await client.send({"type": "InjectAgentMessage", "message": "Still there?"})
        frames = await client.until("AgentAudioDone")
    assert frames[0]["content"] == "Still there?"
    assert sound(frames) == speech("Still there?")


@pytest.mark.parametrize(
    ("refusal", "answer"),
    [
        ("message", {"type": "InjectionRefused", "message": "the user is speaking"}),
        ("bare", {"type": "InjectionRefused"}),
        (
            "warning",
            {
                "type": "Warning",
                "code": "INJECT_AGENT_MESSAGE_DURING_USER_SPEECH",
                "description": "The message was ignored.",
            },
        ),
    ],
)
async def test_injection_into_user_turn_is_refused(refusal, answer):
    async with connected(refusal=refusal) as (conversation, client):
        await conversation.user_starts_speaking()
        await client.send({"type": "InjectAgentMessage", "message": "Hm.", "behavior": "queue"})
        assert (await client.until(answer["type"]))[-1] == answer


async def test_injection_into_agent_turn_is_refused():
    async with connected(refusal="warning") as (conversation, client):
        await conversation.agent_says("It will be", done=False)
        await client.send({"type": "InjectAgentMessage", "message": "Hm."})
        assert (await client.until("Warning"))[-1]["code"] == "INJECT_AGENT_MESSAGE_DURING_AGENT_SPEECH"


@pytest.mark.parametrize("behavior", ["queue", "interrupt"])
async def test_injection_into_agent_turn_can_insist(behavior):
    async with connected() as (conversation, client):
        await conversation.agent_says("It will be", done=False)
        await client.send({"type": "InjectAgentMessage", "message": "Sorry.", "behavior": behavior})
        await client.until("AgentAudioDone")
        assert [text["content"] for text in conversation.sent("ConversationText")] == ["It will be", "Sorry."]


async def test_prompt_grows_until_replaced():
    async with connected() as (conversation, client):
        await client.send({"type": "UpdatePrompt", "prompt": "They like tea."})
        await client.until("PromptUpdated")
        assert conversation.prompt == "You answer the phone of a bicycle workshop.\nThey like tea."
        await client.send({"type": "UpdateThink", "think": {**QUIET["agent"]["think"], "prompt": "Be brief."}})
        await client.until("ThinkUpdated")
        assert conversation.prompt == "Be brief."
        assert (await conversation.message("UpdatePrompt"))["prompt"] == "They like tea."


async def test_long_managed_prompt_is_cut():
    settings = copy.deepcopy(QUIET)
    settings["agent"]["think"]["prompt"] = "x" * 25_001
    async with FakeDeepgram(KEY) as engine, plain(engine) as socket:
        await Client(socket).send(settings)
        assert (await Client(socket).until("Warning"))[-1]["code"] == "PROMPT_TOO_LONG"
        assert len((await engine.next_connection()).prompt) == 25_000


async def test_listen_update_merges_and_clears_hints():
    settings = copy.deepcopy(QUIET)
    settings["agent"]["listen"]["provider"] |= {"model": "flux-general-multi", "language_hints": ["de"]}
    async with connected(settings) as (conversation, client):
        change = {"type": "deepgram", "version": "v2", "model": "flux-general-multi", "eot_threshold": 0.9}
        await client.send({"type": "UpdateListen", "listen": {"provider": change}})
        await client.until("ListenUpdated")
        provider = conversation.agent["listen"]["provider"]
        assert provider["eot_threshold"] == 0.9
        assert provider["keyterms"] == ["Rohloff"]
        assert "language_hints" not in provider
