import asyncio
import threading
from datetime import UTC, datetime

import pytest

from gateway.memory.state import MOST_KEYS
from gateway.session import Speaker, Turn, VoiceSession
from gateway.tools.conversation import Conversation

CALLER = "+12025550143"
NOW = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)


class Line:
    """A call that remembers what was done to it, and in which thread."""

    def __init__(self):
        self.done = []
        self.threads = set()

    def say(self, text):
        self._note("say", text)

    def hang_up(self):
        self._note("hang up")

    def transfer(self, target):
        self._note("transfer", target)

    def turns(self):
        self.threads.add(threading.get_ident())
        return [Turn(Speaker.AGENT, "Hello.", NOW), Turn(Speaker.CALLER, "A table, please.", NOW)]

    def _note(self, *what):
        self.threads.add(threading.get_ident())
        self.done.append(what)


@pytest.fixture
async def line():
    return Line()


@pytest.fixture
async def conv(line):
    return Conversation(VoiceSession("maya", CALLER, "twilio", id="voice-session:3f2a"), line)


async def test_conversation_names_its_call(conv):
    assert (conv.caller, conv.agent, conv.session) == (CALLER, "maya", "voice-session:3f2a")


async def test_effects_hop_to_the_loop_in_order(conv, line):
    def function():
        conv.say(" One moment. ")
        conv.say("")
        conv.transfer("+1 202 555 0100")
        conv.hang_up()

    await asyncio.to_thread(function)
    assert line.done == [("say", "One moment."), ("transfer", "+12025550100"), ("hang up",)]
    assert line.threads == {threading.get_ident()}


async def test_transcript_is_read_from_any_thread(conv, line):
    turns = (("agent", "Hello."), ("caller", "A table, please."))
    assert conv.transcript == turns
    assert await asyncio.to_thread(lambda: conv.transcript) == turns
    assert line.threads == {threading.get_ident()}


@pytest.mark.parametrize("target", ["sip:desk@example.com", "sips:desk@example.com:5061;transport=tls"])
async def test_sip_address_is_taken(conv, line, target):
    conv.transfer(target)
    await asyncio.sleep(0)
    assert line.done == [("transfer", target)]


@pytest.mark.parametrize("target", ["2025550100", "", "911", "sip:desk", "sip:a@b.c</Sip>", "tel:+12025550100"])
async def test_other_targets_are_refused_unquoted(conv, line, target):
    with pytest.raises(ValueError) as raised:
        conv.transfer(target)
    assert str(raised.value) == "transfer takes a number like +12025550100 or an address like sip:desk@example.com"
    assert line.done == []


async def test_only_text_is_said(conv):
    with pytest.raises(TypeError, match="say takes text"):
        conv.say(5)


async def test_given_up_run_has_no_effects(conv, line):
    given_up, other = conv.handle(), conv.handle()
    given_up.say("too late")
    given_up.close()
    given_up.hang_up()
    other.say("in time")
    await asyncio.sleep(0)
    assert line.done == [("say", "in time")]


async def test_runs_share_state(conv):
    conv.handle().state["booking_day"] = "Friday"
    assert conv.state["booking_day"] == "Friday"


async def test_loop_that_ended_is_no_error(line):
    def a_life():
        async def make():
            return Conversation(VoiceSession("maya", CALLER, "twilio"), line)

        return asyncio.run(make())

    conv = await asyncio.to_thread(a_life)
    conv.say("Is anybody there?")
    assert line.done == []


async def test_log_names_the_call(conv, caplog):
    conv.log.warning("table booked", extra={"guests": 2})
    (record,) = caplog.records
    assert (record.name, record.message, record.call, record.agent, record.guests) == (
        "gateway.functions",
        "table booked",
        "3f2a",
        "maya",
        2,
    )


# State and memory


async def test_state_keeps_flat_values(conv):
    conv.state.update(day="Friday", guests=2, price=9.5, outside=True, order={"cheese": "gouda", "grams": 200})
    assert conv.state.fields() == {
        "day": "Friday",
        "guests": 2,
        "price": 9.5,
        "outside": True,
        "order": {"cheese": "gouda", "grams": 200},
    }
    del conv.state["day"]
    assert "day" not in conv.state


@pytest.mark.parametrize(
    "value", [None, [1], {"a": {"b": 1}}, {"a": [1]}, {1: "a"}, float("nan"), object(), b"x", 2**70]
)
async def test_nested_or_odd_state_is_refused(conv, value):
    with pytest.raises(ValueError):
        conv.state["key"] = value
    assert "key" not in conv.state


async def test_kept_object_is_not_changed_in_place(conv):
    given = {"cheese": "gouda"}
    conv.state["order"] = given
    given["cheese"] = ["brie"]
    assert conv.state["order"] == {"cheese": "gouda"}
    with pytest.raises(TypeError):
        conv.state["order"]["cheese"] = "brie"


async def test_state_is_bounded(conv):
    for number in range(MOST_KEYS):
        conv.state[f"key {number}"] = number
    conv.state["key 0"] = "still changeable"
    with pytest.raises(ValueError, match="at most 100 state keys"):
        conv.state["one more"] = 1


async def test_memory_is_read_only(line):
    memory = {"cheese_type": "gouda", "order": {"grams": 200}}
    conv = Conversation(VoiceSession("maya", CALLER, "twilio"), line, memory=memory)
    assert conv.memory.get("cheese_type") == "gouda"
    assert conv.memory.get("wine") is None
    assert ("order" in conv.memory, len(conv.memory)) == (True, 2)
    fields = conv.memory.fields()
    fields["order"]["grams"] = 5
    assert conv.memory["order"] == {"grams": 200}
    with pytest.raises(TypeError):
        conv.memory["wine"] = "red"


async def test_memory_may_be_kept_on(line):
    conv = Conversation(VoiceSession("maya", CALLER, "twilio"), line, memory={"order": {"grams": 200}})
    conv.state["order"] = conv.memory["order"]
    assert conv.state.fields() == {"order": {"grams": 200}}


async def test_resumed_call_has_its_state(line):
    conv = Conversation(VoiceSession("maya", CALLER, "twilio", state={"day": "Friday"}), line)
    assert conv.state["day"] == "Friday"


async def test_state_set_off_the_record_is_not_kept(line):
    session = VoiceSession("maya", CALLER, "twilio", state={"day": "Friday", "guests": 2})
    conv = Conversation(session, line)
    session.off_record = True
    conv.state.update(day="Monday", cheese="brie")
    session.off_record = False
    conv.state["guests"] = 3
    assert conv.state["day"] == "Monday"
    assert conv.state.kept_fields(session.state) == {"day": "Friday", "guests": 3}


async def test_state_set_again_on_the_record_is_kept(line):
    session = VoiceSession("maya", CALLER, "twilio")
    conv = Conversation(session, line)
    session.off_record = True
    conv.state["day"] = "Monday"
    session.off_record = False
    conv.state["day"] = "Tuesday"
    assert conv.state.kept_fields({}) == {"day": "Tuesday"}
