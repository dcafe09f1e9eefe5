"""The dialogue of the cascade engine, with local parts. The speech worker and the language model are the test's."""

import asyncio
import json
from dataclasses import replace

import pytest

from gateway.agents import Agent, ConsentSettings
from gateway.calls.recorder import NoRecorder
from gateway.engines.cascade import BUSY, INTERRUPTED, CascadeEngine
from gateway.engines.deepgram_codec import DeepgramCodec
from gateway.engines.interface import (
    AgentAudioDone,
    AgentFunction,
    AgentSaid,
    AgentSettings,
    EngineFailed,
    EngineGreeted,
    FunctionCall,
    FunctionsRequested,
    HistoryMessage,
    HistoryToolCall,
    InjectionRefused,
    PromptUpdated,
    SettingsApplied,
    TurnEnded,
    UserSaid,
    UserStartedSpeaking,
)
from gateway.engines.local import HEARING
from gateway.errors import EngineRefused, EngineUnavailable
from gateway.llm.chat import Finished, LlmEndpoint, TextDelta, ToolCallDelta

pytestmark = pytest.mark.virtual_time

AUDIO = b"\x02" * 1600
MAYA = Agent("maya", "")
END_CALL = AgentFunction("end_call", "Hang up.")
CALL = FunctionCall("7", "end_call", "{}")


class FakeSpeech:
    """A recogniser and voice: synthesizes every text at once, and recognises what the test says."""

    name, hearing = "local", HEARING

    def __init__(self, *, is_full=False):
        self.channels, self.is_full = [], is_full

    async def open_recogniser(self, listener):
        if not self.channels or self.channels[-1].listener is not listener:
            self.channels.append(FakeChannel(listener))
        return self.channels[-1]

    open_voice = open_recogniser


class FakeChannel:
    buffered_bytes = 0

    def __init__(self, listener):
        self.listener = listener
        self.texts, self.heard, self.closed, self.patience = 0, b"", False, []

    def say(self, text):
        self.texts += 1
        asyncio.get_running_loop().call_soon(self._synthesize, self.texts)
        return self.texts

    def _synthesize(self, number):
        self.listener.on_audio(number, AUDIO)
        self.listener.on_spoken(number)

    def send_audio(self, audio):
        self.heard += audio

    def set_patience(self, patience):
        self.patience.append(patience)

    def cancel_speech(self):
        pass

    def end_turn(self):
        self.listener.on_speech_ended("what was recognised so far")

    def close(self):
        self.closed = True


class FakeLlm:
    """Answers with what the test prepared, and keeps the requests."""

    def __init__(self, *answers, opens=False):
        self.answers, self.requests, self.opens = list(answers), [], opens

    async def answer(self, request):
        self.requests.append(request)
        for index, item in enumerate(self.answers.pop(0)):
            if isinstance(item, asyncio.Event):
                await item.wait()
            elif isinstance(item, FunctionCall):
                yield ToolCallDelta(index, item.id, item.name, item.arguments[:1])
                yield ToolCallDelta(index, "", "", item.arguments[1:])
            else:
                yield TextDelta(item)
        yield Finished("stop")

    def messages(self, number):
        """The conversation in a request, without the instructions."""
        return list(self.requests[number].messages[1:])

    def texts(self, number):
        return [message["content"] for message in self.messages(number)]


class FakeRecorder(NoRecorder):
    def __init__(self):
        self.received, self.sent = [], []

    def from_engine(self, frame):
        self.received.append(frame)

    def to_engine(self, frame):
        self.sent.append(json.loads(frame))


class Talk:
    """One session: what it reports, and the caller."""

    def __init__(self, llm, recorder=None):
        self.llm, self.recorder = llm, recorder or NoRecorder()
        self.events, self.audio, self.error = [], b"", None

    def on_agent_audio(self, audio):
        self.audio += audio

    def on_engine_event(self, event):
        self.events.append(event)

    def on_engine_closed(self, error):
        self.error = error

    def caller_says(self, text):
        self.channel.listener.on_speech_started()
        self.channel.listener.on_speech_ended(text)

    def caller_hears(self, seconds):
        self.session.send_audio(b"\xff" * int(seconds * 8000))

    async def gets(self, kind, count=1):
        async with asyncio.timeout(60):
            while sum(isinstance(event, kind) for event in self.events) < count:
                await asyncio.sleep(0.01)

    def said(self, kind=AgentSaid):
        return [event.text for event in self.events if isinstance(event, kind)]


def local_engine(speech):
    return CascadeEngine("local", speech, speech)


async def connected(llm, *, agent=MAYA, greeting="", recorder=None, **settings):
    speech, talk = FakeSpeech(), Talk(llm, recorder)
    endpoint = LlmEndpoint("https://voice.example.com/v1/chat/completions", "the-bearer", llm)

    async def load_settings():
        return AgentSettings(agent, "You are Maya.", greeting, (END_CALL,), llm=endpoint, **settings)

    engine = local_engine(speech)
    talk.session = await engine.connect(load_settings, talk)
    talk.channel = speech.channels[0]
    assert SettingsApplied() not in talk.events  # comes after `connect` has returned
    await talk.gets(SettingsApplied)
    return talk


async def test_agent_greets():
    talk = await connected(FakeLlm(), greeting="Hello. How are you?")
    await talk.gets(AgentAudioDone)
    assert talk.said() == ["Hello.", "How are you?"]
    assert talk.audio == 2 * AUDIO
    assert talk.events[:2] == [EngineGreeted("local"), SettingsApplied()]


async def test_session_is_recorded_as_deepgram_messages():
    recorder = FakeRecorder()
    talk = await connected(FakeLlm([CALL], ["Bye."]), recorder=recorder)
    talk.session.say("One moment.", interrupt=True)
    await asyncio.sleep(0)
    talk.session.update_instructions("It is late.")
    talk.session.replace_settings(AgentSettings(MAYA, "You are Maya."))
    talk.session.end_user_turn()
    await talk.gets(FunctionsRequested)
    talk.session.answer_tool("7", "ok")
    talk.session.answer_tool("7", "twice")
    sent = ["Settings", "InjectAgentMessage", "UpdatePrompt", "UpdateThink", "ForceEndTurn", "FunctionCallResponse"]
    assert [message["type"] for message in recorder.sent] == sent
    assert recorder.sent[-1]["name"] == "end_call"
    codec = DeepgramCodec()
    assert [event for frame in recorder.received for event in codec.receive(frame)] == talk.events


async def test_turn_is_answered():
    talk = await connected(FakeLlm(["I am ", "fine. And", " you?"]))
    talk.caller_says("How are you?")
    await talk.gets(AgentAudioDone)
    assert talk.events[2:] == [
        UserStartedSpeaking(),
        TurnEnded(),
        UserSaid("How are you?"),
        AgentSaid("I am fine."),
        AgentSaid("And you?"),
        AgentAudioDone(),
    ]
    [system, question] = talk.llm.requests[0].messages
    assert system == {"role": "system", "content": f"You are Maya.\n\n{HEARING}"}
    assert question == {"role": "user", "content": "How are you?"}


async def test_conversation_so_far_is_in_the_request():
    history = (HistoryMessage("user", "Hello."), HistoryToolCall(CALL, "ok"), HistoryMessage("assistant", "Hi."))
    talk = await connected(FakeLlm(["Yes."]), history=history)
    talk.caller_says("Are you there?")
    await talk.gets(AgentAudioDone)
    assert talk.llm.texts(0) == ["Hello.", "Hi.", "Are you there?"]


async def test_conversation_is_kept():
    talk = await connected(FakeLlm(["Fine."], ["Yes."]), greeting="Hello. How are you?")
    await talk.gets(AgentAudioDone)
    talk.caller_hears(5)
    talk.caller_says("How are you?")
    await talk.gets(AgentAudioDone, 2)
    talk.caller_hears(5)
    talk.session.update_instructions("It is late.")
    await talk.gets(PromptUpdated)
    talk.caller_says("Really?")
    await talk.gets(AgentAudioDone, 3)
    assert talk.llm.requests[1].messages[0]["content"].endswith("\nIt is late.")
    assert talk.llm.texts(1) == ["Hello. How are you?", "How are you?", "Fine.", "Really?"]


async def test_unheard_sentences_are_removed():
    talk = await connected(FakeLlm(["One. Two. Three."], ["Sorry."]))
    talk.caller_says("Count.")
    await talk.gets(AgentAudioDone)
    talk.caller_hears(0.25)  # each sentence takes 0.2 s
    talk.caller_says("Stop.")
    await talk.gets(AgentAudioDone, 2)
    assert talk.llm.texts(1) == ["Count.", "One.", "Stop."]


async def test_turns_without_an_answer_between_them_are_one():
    talk = await connected(FakeLlm([asyncio.Event()], ["I see."]))
    talk.caller_says("My name is Anna.")
    await asyncio.sleep(1)
    talk.caller_says("And I have a question.")
    await talk.gets(AgentAudioDone)
    assert talk.llm.messages(1) == [{"role": "user", "content": "My name is Anna. And I have a question."}]
    assert talk.said(UserSaid) == ["My name is Anna.", "And I have a question."]


async def test_cough_does_not_end_an_answer():
    talk = await connected(FakeLlm(["One. Two."]))
    talk.caller_says("Count.")
    await talk.gets(AgentAudioDone)
    talk.caller_says("")
    await talk.gets(AgentAudioDone, 2)
    assert talk.said() == ["One.", "Two.", "One.", "Two."]
    assert len(talk.llm.requests) == 1


# Who may speak

STORY = "We open at nine, and on Sundays at ten. Then we close at six."
"""Two sentences of 0.2 s each."""


async def telling(interrupt, *answers, story=STORY):
    """A session in which the agent has sent all of its answer, and the caller has heard 0.1 s of it."""
    talk = await connected(FakeLlm([story], *answers), agent=replace(MAYA, interrupt=interrupt))
    talk.caller_says("When do you open?")
    await talk.gets(AgentAudioDone)
    talk.caller_hears(0.1)
    return talk


async def test_agent_does_not_repeat_itself_after_a_stop():
    """The model gets what was heard of a sentence, not the question alone."""
    talk = await telling("at_once", ["All right."])
    talk.caller_says("Stop.")
    await talk.gets(AgentAudioDone, 2)
    assert talk.llm.texts(1) == ["When do you open?", "We open at nine,", "Stop."]


@pytest.mark.parametrize(
    ("interrupt", "said_again"), [("at_once", STORY.split(". ")[0] + "."), ("words", ""), ("never", "")]
)
async def test_backchannel_does_not_end_an_answer(interrupt, said_again):
    talk = await telling(interrupt)
    talk.caller_says("Uh-huh, got it.")
    await asyncio.sleep(1)
    assert talk.said(UserSaid) == ["When do you open?", "Uh-huh, got it."]
    assert len(talk.llm.requests) == 1
    assert len(talk.said()) == (4 if said_again else 2)
    assert talk.said()[2:3] == ([said_again] if said_again else [])


async def test_backchannel_to_a_question_is_answered():
    talk = await telling("at_once", ["It is booked."], story="Shall I book a table? It is by the window.")
    talk.caller_says("Yeah, sure.")
    await talk.gets(AgentAudioDone, 2)
    assert talk.said()[-1] == "It is booked."


async def test_words_end_the_answer_when_they_are_known():
    talk = await telling("words", ["All right."])
    talk.channel.listener.on_speech_started()
    talk.caller_hears(0.05)
    talk.channel.listener.on_speech_ended("What about Monday?")
    await talk.gets(AgentAudioDone, 2)
    assert talk.llm.texts(1)[1:] == ["We open at nine, and on", "What about Monday?"]


async def test_call_may_cut_the_agent_off_before():
    talk = await telling("words", ["All right."])
    talk.channel.listener.on_speech_started()
    talk.session.truncate(300)
    talk.caller_hears(1)  # which plays nothing more
    talk.channel.listener.on_speech_ended("I have another question.")
    await talk.gets(AgentAudioDone, 2)
    assert talk.llm.texts(1)[1:] == ["We open at nine,", "I have another question."]


async def test_answer_that_is_never_cut_off_is_completed_first():
    rest = asyncio.Event()
    talk = await connected(FakeLlm(["One. ", rest, "Two."], ["Six."]), agent=replace(MAYA, interrupt="never"))
    talk.caller_says("Count.")
    await talk.gets(AgentSaid)
    talk.caller_says("And when do you close?")
    talk.caller_says("On Mondays.")
    rest.set()
    await talk.gets(AgentAudioDone, 2)
    assert talk.said() == ["One.", "Two.", "Six."]
    assert talk.said(UserSaid) == ["Count.", "And when do you close? On Mondays."]
    assert talk.llm.texts(1) == ["Count.", "One. Two.", "And when do you close? On Mondays."]
    done = talk.events.index(AgentAudioDone())
    assert isinstance(talk.events[done + 1], UserSaid)


async def test_recogniser_waits_as_long_as_it_should():
    talk = await connected(FakeLlm(), agent=replace(MAYA, patience="long"))
    talk.session.expect_dictation(True)
    talk.session.expect_dictation(False)
    assert talk.channel.patience == ["long", "dictation", "long"]


async def test_agent_that_is_silent_can_be_spoken_to():
    talk = await connected(FakeLlm(["Fine."]), agent=replace(MAYA, interrupt="never"))
    talk.caller_says("How are you?")
    await talk.gets(AgentAudioDone)
    assert talk.said() == ["Fine."]


async def test_functions_are_called_and_answered():
    talk = await connected(FakeLlm([CALL], ["Goodbye."]))
    talk.caller_says("Bye.")
    await talk.gets(FunctionsRequested)
    assert talk.events[-1] == FunctionsRequested((CALL,))
    talk.session.answer_tool("another", "ignored")
    talk.session.answer_tool("7", "ok")
    await talk.gets(AgentAudioDone)
    assert talk.said() == ["Goodbye."]
    [tool] = talk.llm.requests[0].tools
    assert tool["function"] == {"name": "end_call", "description": "Hang up.", "parameters": END_CALL.parameters}
    request, result = talk.llm.messages(1)[-2:]
    assert request["tool_calls"][0]["id"] == "7"
    assert result == {"role": "tool", "tool_call_id": "7", "content": "ok"}


async def test_function_that_was_interrupted_has_a_result():
    talk = await connected(FakeLlm([CALL], ["Yes?"]))
    talk.caller_says("Bye.")
    await talk.gets(FunctionsRequested)
    talk.caller_says("No, wait.")
    await talk.gets(AgentAudioDone)
    assert talk.llm.messages(1)[-2:] == [
        {"role": "tool", "tool_call_id": "7", "content": INTERRUPTED},
        {"role": "user", "content": "No, wait."},
    ]


async def test_injected_text_is_said_unless_the_caller_speaks():
    talk = await connected(FakeLlm())
    talk.session.say("One moment.")
    await talk.gets(AgentAudioDone)
    talk.channel.listener.on_speech_started()
    talk.session.say("One moment.")
    await talk.gets(InjectionRefused)
    assert talk.said() == ["One moment."]


async def test_interrupting_text_ends_the_answer():
    never = asyncio.Event()
    talk = await connected(FakeLlm(["One. Two. ", never, "Three."], ["Yes."]))
    talk.caller_says("Count.")
    await talk.gets(AgentSaid, 2)
    talk.session.say("Stop.", interrupt=True)
    await talk.gets(AgentAudioDone)
    never.set()
    talk.caller_hears(5)
    talk.caller_says("Really?")
    await talk.gets(AgentAudioDone, 2)
    assert talk.said() == ["One.", "Two.", "Stop.", "Yes."]
    assert talk.llm.texts(1) == ["Count.", "Stop.", "Really?"]


async def test_replaced_settings_leave_nothing_of_the_old_prompt():
    """A caller who is forgotten, or who passed on the phone, is not mentioned any more."""
    talk = await connected(FakeLlm(["Who?"]))
    talk.session.update_instructions("The caller is Anna.")
    talk.session.replace_settings(AgentSettings(MAYA, "You are still Maya."))
    talk.caller_says("Who am I?")
    await talk.gets(AgentAudioDone)
    assert talk.llm.requests[0].messages[0]["content"] == f"You are still Maya.\n\n{HEARING}"
    assert talk.llm.requests[0].tools == ()


async def test_language_model_may_greet_in_its_own_words():
    llm = FakeLlm(["Hello again. How are you today?"], opens=True)
    talk = await connected(llm, greeting="Hello. How are you?")
    await talk.gets(AgentAudioDone)
    assert talk.said() == ["Hello again.", "How are you today?"]
    assert llm.messages(0) == [{"role": "assistant", "content": "Hello. How are you?"}]


async def test_question_for_consent_is_spoken_as_it_is():
    agent = Agent("maya", "", consent=ConsentSettings(require=True))
    talk = await connected(FakeLlm(opens=True), agent=agent, greeting="May I record this call?")
    await talk.gets(AgentAudioDone)
    assert talk.said() == ["May I record this call?"]


async def test_full_engine_says_so_and_hangs_up():
    speech, talk = FakeSpeech(is_full=True), Talk(FakeLlm())
    endpoint = LlmEndpoint("", "", talk.llm)

    async def load_settings():
        return AgentSettings(MAYA, "", "Hello.", llm=endpoint)

    talk.session = await local_engine(speech).connect(load_settings, talk)
    await talk.gets(AgentAudioDone)
    assert talk.said() == [BUSY]
    assert isinstance(talk.events[2], FunctionsRequested)  # before the text, so that the call ends after it
    talk.session.send_audio(AUDIO)
    assert speech.channels[0].heard == b""


async def test_end_of_turn_is_forced():
    talk = await connected(FakeLlm(["Yes."]))
    talk.channel.listener.on_speech_started()
    talk.session.end_user_turn()
    await talk.gets(AgentAudioDone)
    assert talk.said(UserSaid) == ["what was recognised so far"]


async def test_failed_speech_ends_the_session():
    talk = await connected(FakeLlm())
    talk.channel.listener.on_speech_failed("voice failed: URLError")
    assert talk.events[-1] == EngineFailed("voice failed: URLError", retryable=True)
    assert isinstance(talk.error, EngineUnavailable)
    talk.session.close()
    assert talk.channel.closed


async def test_closed_session_reports_nothing():
    talk = await connected(FakeLlm(["Yes."]))
    talk.caller_says("Hello?")
    talk.session.close()
    await asyncio.sleep(1)
    assert talk.said() == []
    assert (talk.audio, talk.error) == (b"", None)


async def test_session_needs_a_language_model():
    speech = FakeSpeech()

    async def load_settings():
        return AgentSettings(MAYA, "")

    with pytest.raises(EngineRefused):
        await local_engine(speech).connect(load_settings, Talk(None))
    assert speech.channels[0].closed


async def test_failed_answer_ends_the_session(caplog):
    class Broken(FakeLlm):
        async def answer(self, request):
            raise ValueError("a bug")
            yield ""

    talk = await connected(Broken())
    talk.caller_says("Hello?")
    await talk.gets(EngineFailed)
    assert "dialogue failed" in caplog.text
    assert isinstance(talk.error, EngineUnavailable)


async def test_speech_before_the_call_means_nothing():
    """A recogniser that is connected while the phone rings may hear something in the silence that it gets."""
    speech, talk = FakeSpeech(), Talk(FakeLlm())

    async def load_settings():
        speech.channels[0].listener.on_speech_started()
        speech.channels[0].listener.on_speech_ended("Noise.")
        return AgentSettings(MAYA, "", llm=LlmEndpoint("", "", talk.llm))

    talk.session = await local_engine(speech).connect(load_settings, talk)
    await talk.gets(SettingsApplied)
    assert talk.events == [EngineGreeted("local"), SettingsApplied()]


class FakePart:
    """A recogniser that opens at once, or a voice that does not open."""

    name, hearing, is_ready, is_full = "part", "", True, False

    def __init__(self, error=None):
        self.error, self.closed = error, False

    async def open_recogniser(self, listener):
        if self.error is not None:
            await asyncio.sleep(1)
            raise self.error
        return self

    open_voice = open_recogniser

    async def probe(self):
        if self.error is not None:
            raise self.error
        return "works"

    def close(self):
        self.closed = True


async def test_every_part_is_probed():
    assert await CascadeEngine("both", FakePart(), FakePart()).probe() == "works; works"
    parts = FakePart(EngineRefused("wrong key")), FakePart(EngineUnavailable("gone"))
    with pytest.raises(EngineUnavailable, match="wrong key; gone"):
        await CascadeEngine("both", *parts).probe()


@pytest.mark.parametrize("failing", ["recogniser", "voice"])
async def test_part_is_closed_where_the_other_does_not_open(failing):
    opens, fails = FakePart(), FakePart(EngineUnavailable("gone"))
    parts = (fails, opens) if failing == "recogniser" else (opens, fails)
    with pytest.raises(EngineUnavailable, match="gone"):
        await CascadeEngine("both", *parts).connect(None, Talk(None))
    await asyncio.sleep(0)
    assert opens.closed
