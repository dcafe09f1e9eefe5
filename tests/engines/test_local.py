"""One conversation with the local engine: speech and mind are the test's, the rest is real."""

import asyncio

import orjson

from gateway.engines.agent_settings import AgentFunction, AgentSettings, ThinkEndpoint
from gateway.engines.deepgram_codec import DeepgramCodec
from gateway.engines.events import EngineFailed, FunctionCall
from gateway.engines.local import BUSY, HEARING, INTERRUPTED, URL, LocalEngine
from tests.stage import until

CODEC = DeepgramCodec()
SOUND = b"\x02" * 1600
END_CALL = AgentFunction("end_call", "Hang up.")


class FakeSpeech:
    """A speech process that makes the same sound of every text at once, and hears what the test says was said."""

    def __init__(self, *, silent=False):
        self.silent = silent
        self.seats = []

    async def ready(self, timeout):
        pass

    @property
    def taken_seats(self):
        return len(self.seats)

    def speech_channel(self, listener):
        self.seats.append(FakeSeat(listener, self.silent))
        return self.seats[-1]


class FakeSeat:
    buffered_bytes = 0

    def __init__(self, listener, silent):
        self.listener, self.silent = listener, silent
        self.said, self.heard, self.left = [], b"", False

    def say(self, text):
        self.said.append(text)
        number = len(self.said)
        if not self.silent:
            asyncio.get_running_loop().call_soon(self._sound, number)
        return number

    def _sound(self, number):
        self.listener.on_sound(number, SOUND)
        self.listener.on_spoken(number)

    def hear(self, audio):
        self.heard += audio

    def hush(self):
        pass

    def end_turn(self):
        self.listener.on_ended("what there was")

    def leave(self):
        self.left = True


class FakeMind:
    """Answers with what the test prepared; remembers what it was asked."""

    opens = False

    def __init__(self, *answers):
        self.answers, self.asked = list(answers), []

    async def answer(self, messages, functions):
        self.asked.append(messages)
        self.functions = functions
        for piece in self.answers.pop(0):
            if isinstance(piece, asyncio.Event):
                await piece.wait()
            else:
                yield piece


class Owner:
    """The gateway's end of the socket."""

    def __init__(self):
        self.socket, self.frames, self.sound, self.closed = None, [], b"", None

    def on_open(self, socket):
        self.socket = socket

    def on_text(self, data):
        self.frames.append(orjson.loads(data))

    def on_binary(self, data):
        self.sound += data

    def on_closed(self, code):
        self.closed = code

    def texts(self, role):
        said = (frame for frame in self.frames if frame["type"] == "ConversationText")
        return [frame["content"] for frame in said if frame["role"] == role]

    @property
    def types(self):
        return [frame["type"] for frame in self.frames]

    async def gets(self, kind, count=1):
        await until(lambda: self.types.count(kind) >= count)


class Talk:
    """A configured conversation."""

    def __init__(self, owner, speech_channel, mind):
        self.owner, self.speech_channel, self.mind = owner, speech_channel, mind

    def caller_says(self, text):
        self.speech_channel.listener.on_began()
        self.speech_channel.listener.on_ended(text)

    def caller_hears(self, seconds):
        self.owner.socket.send_binary(b"\xff" * int(seconds * 8000))


async def opened(mind, *, greeting="Hello. How are you?", most_calls=4, speech=None):
    speech, owner = speech or FakeSpeech(), Owner()
    endpoint = ThinkEndpoint("https://voice.example.com/v1/chat/completions", "the-bearer")

    async def find_mind(bearer):
        return mind if bearer == "the-bearer" else None

    engine = LocalEngine(speech, find_mind, most_calls=most_calls)
    await engine.connect(URL, {}, owner, max_bytes=1, timeout=1)
    agent_settings = AgentSettings("maya", "You are Maya.", greeting, {}, None, {}, (END_CALL,), (), endpoint)
    owner.socket.send_text(CODEC.settings(agent_settings))
    await owner.gets("SettingsApplied")
    return Talk(owner, speech.seats[-1], mind)


async def test_the_agent_greets():
    talk = await opened(FakeMind())
    await talk.owner.gets("AgentAudioDone")
    assert talk.owner.texts("assistant") == ["Hello.", "How are you?"]
    assert talk.owner.sound == 2 * SOUND
    assert talk.owner.types[:2] == ["Welcome", "SettingsApplied"]


async def test_a_turn_is_answered():
    talk = await opened(FakeMind(["I am ", "fine. And", " you?"]), greeting="")
    talk.caller_says("How are you?")
    await talk.owner.gets("AgentAudioDone")
    assert talk.owner.types[2:] == [
        "UserStartedSpeaking",
        "EndOfTurn",
        "ConversationText",
        "ConversationText",
        "ConversationText",
        "AgentAudioDone",
    ]
    assert talk.owner.texts("user") == ["How are you?"]
    assert talk.owner.texts("assistant") == ["I am fine.", "And you?"]
    [system, question] = talk.mind.asked[0]
    assert system == {"role": "system", "content": f"You are Maya.\n\n{HEARING}"}
    assert question == {"role": "user", "content": "How are you?"}


async def test_the_conversation_is_remembered():
    talk = await opened(FakeMind(["Fine."], ["Yes."]))
    await talk.owner.gets("AgentAudioDone")
    talk.caller_hears(5)
    talk.caller_says("How are you?")
    await talk.owner.gets("AgentAudioDone", 2)
    talk.caller_hears(5)
    talk.owner.socket.send_text(CODEC.update_prompt("It is late."))
    talk.caller_says("Really?")
    await talk.owner.gets("AgentAudioDone", 3)
    system, *said = talk.mind.asked[1]
    assert system["content"].endswith("\nIt is late.")
    assert [message["content"] for message in said] == ["Hello. How are you?", "How are you?", "Fine.", "Really?"]


async def test_what_was_not_heard_was_not_said():
    talk = await opened(FakeMind(["One. Two. Three."], ["Sorry."]), greeting="")
    talk.caller_says("Count.")
    await talk.owner.gets("AgentAudioDone")
    talk.caller_hears(0.25)  # each takes a fifth of a second
    talk.caller_says("Stop.")
    await until(lambda: len(talk.mind.asked) == 2)
    assert [message["content"] for message in talk.mind.asked[1][1:]] == ["Count.", "One.", "Stop."]


async def test_who_goes_on_before_an_answer_has_said_one_thing():
    never = asyncio.Event()
    talk = await opened(FakeMind([never], ["I see."]), greeting="")
    talk.caller_says("My name is Anna.")
    await until(lambda: talk.mind.asked)
    talk.caller_says("And I have a question.")
    await talk.owner.gets("AgentAudioDone")
    assert talk.mind.asked[1][1:] == [{"role": "user", "content": "My name is Anna. And I have a question."}]
    assert talk.owner.texts("user") == ["My name is Anna.", "And I have a question."]


async def test_a_cough_does_not_end_an_answer():
    talk = await opened(FakeMind(["One. Two."]), greeting="")
    talk.caller_says("Count.")
    await talk.owner.gets("AgentAudioDone")
    talk.caller_says("")
    await talk.owner.gets("AgentAudioDone", 2)
    assert talk.owner.texts("assistant") == ["One.", "Two.", "One.", "Two."]
    assert len(talk.mind.asked) == 1


async def test_functions_are_called_and_answered():
    call = FunctionCall("7", "end_call", "{}")
    talk = await opened(FakeMind([call], ["Goodbye."]), greeting="")
    talk.caller_says("Bye.")
    await talk.owner.gets("FunctionCallRequest")
    assert CODEC.receive(orjson.dumps(talk.owner.frames[-1]))[0].calls == (call,)
    talk.owner.socket.send_text(CODEC.function_result(call, "ok"))
    await talk.owner.gets("AgentAudioDone")
    assert talk.owner.texts("assistant") == ["Goodbye."]
    assert talk.mind.functions == (END_CALL,)
    request, result = talk.mind.asked[1][-2:]
    assert request["tool_calls"][0]["id"] == "7"
    assert result == {"role": "tool", "tool_call_id": "7", "content": "ok"}


async def test_a_function_without_result_is_told_as_such():
    talk = await opened(FakeMind([FunctionCall("7", "end_call", "{}")], ["Yes?"]), greeting="")
    talk.caller_says("Bye.")
    await talk.owner.gets("FunctionCallRequest")
    talk.caller_says("No, wait.")
    await talk.owner.gets("AgentAudioDone")
    assert talk.mind.asked[1][-2:] == [
        {"role": "tool", "tool_call_id": "7", "content": INTERRUPTED},
        {"role": "user", "content": "No, wait."},
    ]


async def test_a_message_is_said_unless_the_caller_speaks():
    talk = await opened(FakeMind(), greeting="")
    talk.owner.socket.send_text(CODEC.say("One moment."))
    await talk.owner.gets("AgentAudioDone")
    talk.speech_channel.listener.on_began()
    talk.owner.socket.send_text(CODEC.say("One moment."))
    await talk.owner.gets("InjectionRefused")
    assert talk.owner.texts("assistant") == ["One moment."]


async def test_what_is_said_instead_ends_the_answer():
    never = asyncio.Event()
    talk = await opened(FakeMind(["One. Two. ", never, "Three."], ["Yes."]), greeting="")
    talk.caller_says("Count.")
    await until(lambda: talk.owner.texts("assistant") == ["One.", "Two."])
    talk.owner.socket.send_text(CODEC.say_instead("Stop."))
    await talk.owner.gets("AgentAudioDone")
    never.set()
    talk.caller_hears(5)
    talk.caller_says("Really?")
    await talk.owner.gets("AgentAudioDone", 2)
    assert talk.owner.texts("assistant") == ["One.", "Two.", "Stop.", "Yes."]
    assert [message["content"] for message in talk.mind.asked[1][1:]] == ["Count.", "Stop.", "Really?"]


async def test_a_replaced_prompt_leaves_nothing_of_the_old_one():
    """Whoever is forgotten, or has given the phone to somebody else, is not spoken of any more."""
    talk = await opened(FakeMind(["Who?"]), greeting="")
    talk.owner.socket.send_text(CODEC.update_prompt("The caller is Anna."))
    agent_settings = AgentSettings("maya", "You are still Maya.", "", {}, {}, {}, (), (), None)
    talk.owner.socket.send_text(CODEC.update_think(agent_settings))
    talk.caller_says("Who am I?")
    await talk.owner.gets("AgentAudioDone")
    assert talk.mind.asked[0][0]["content"] == f"You are still Maya.\n\n{HEARING}"
    assert talk.mind.functions == ()


async def test_a_mind_may_greet_in_its_own_words():
    mind = FakeMind(["Hello again. How are you today?"])
    mind.opens = True
    talk = await opened(mind)
    await talk.owner.gets("AgentAudioDone")
    assert talk.owner.texts("assistant") == ["Hello again.", "How are you today?"]
    assert mind.asked[0][-1] == {"role": "assistant", "content": "Hello. How are you?"}


async def test_a_full_house_says_so_and_hangs_up():
    talk = await opened(FakeMind(), most_calls=0)
    await talk.owner.gets("AgentAudioDone")
    assert talk.owner.texts("assistant") == [BUSY]
    assert talk.owner.types.index("FunctionCallRequest") < talk.owner.types.index("ConversationText")
    talk.owner.socket.send_binary(SOUND)
    assert talk.speech_channel.heard == b""


async def test_the_last_words_are_asked_for():
    talk = await opened(FakeMind(["Yes."]), greeting="")
    talk.speech_channel.listener.on_began()
    talk.owner.socket.send_text(CODEC.force_end_turn())
    await talk.owner.gets("AgentAudioDone")
    assert talk.owner.texts("user") == ["what there was"]


async def test_broken_speech_is_a_failure_that_may_pass():
    talk = await opened(FakeMind(), greeting="")
    talk.speech_channel.listener.on_speech_broke("voice failed: URLError")
    assert CODEC.receive(orjson.dumps(talk.owner.frames[-1])) == [EngineFailed("voice failed: URLError", True)]


async def test_lost_speech_closes_the_socket():
    talk = await opened(FakeMind(), greeting="")
    talk.speech_channel.listener.on_speech_lost()
    await until(lambda: talk.owner.closed)
    talk.owner.socket.close()
    assert talk.speech_channel.left


async def test_nothing_is_said_after_the_close():
    talk = await opened(FakeMind(["Yes."]), greeting="")
    talk.caller_says("Hello?")
    talk.owner.socket.close()
    await until(lambda: talk.owner.closed)
    assert talk.owner.texts("assistant") == []


async def test_an_unknown_bearer_is_refused():
    talk_owner = Owner()

    async def nobody(bearer):
        return None

    await LocalEngine(FakeSpeech(), nobody, most_calls=1).connect(URL, {}, talk_owner, max_bytes=1, timeout=1)
    talk_owner.socket.send_text(CODEC.settings(AgentSettings("maya", "", "", {}, {}, {})))
    await talk_owner.gets("Error")
    assert not CODEC.receive(orjson.dumps(talk_owner.frames[-1]))[0].retryable


async def test_a_failure_is_told(caplog):
    class Broken(FakeMind):
        async def answer(self, messages, functions):
            raise ValueError("a bug")
            yield ""

    talk = await opened(Broken(), greeting="")
    talk.caller_says("Hello?")
    await talk.owner.gets("Error")
    assert "local engine failed" in caplog.text
