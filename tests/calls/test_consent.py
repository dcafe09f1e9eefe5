import logging
from dataclasses import dataclass, field

import pytest

from gateway.agents import Agent, ConsentSettings
from gateway.calls.consent import ConsentTimeouts, RecordingConsent, first_words
from gateway.logs import CallLogger
from gateway.session import Consent, VoiceSession
from tests.fakes.call_parts import CALLER, make_records

ASK = "May I record this call? Please say yes or no."
NOT_RECORDED = "All right, this call is not recorded. Hello."
TIMEOUTS = ConsentTimeouts(answer=10.0, longest=60.0)


def agent(announce="We record.", require=True, language="en"):
    return Agent("maya", "", greeting="Hello.", language=language, consent=ConsentSettings(announce, require))


@dataclass
class Line:
    """A call whose agent is about to speak."""

    agent: Agent = field(default_factory=agent)

    def __post_init__(self):
        self.session = VoiceSession("maya", CALLER, "twilio")
        self.records = make_records()
        log = CallLogger(logging.getLogger("test"), {})
        self.consent = RecordingConsent(self.session, self.agent, self.records, log, TIMEOUTS)

    def asked(self, now=0.0):
        self.consent.agent_spoke(now)
        return self

    def says(self, text):
        return self.consent.caller_said(text, "Hello.")

    def tick(self, now, played_until=0.0):
        return self.consent.tick(now, played_until, "Hello.")

    @property
    def outcome(self):
        """The answer that is kept, and whether the recording was started or discarded."""
        kept = [value for kind, value in self.records.events.written if kind == "consent"]
        assert kept == ([str(self.session.consent)] if self.session.consent else [])
        recorder = self.records.recorder
        return str(self.session.consent), "started" * recorder.started + "discarded" * recorder.discarded


@pytest.mark.parametrize(
    "announce, require, words",
    [
        ("", False, "Hello."),
        ("This call is recorded.", False, "This call is recorded. Hello."),
        ("We record.", True, f"We record. {ASK}"),
        ("We record. Is that okay?", True, "We record. Is that okay?"),
        ("", True, ASK),
    ],
)
def test_first_words(announce, require, words):
    assert first_words(agent(announce, require), "Hello.") == words


def test_announcing_is_enough():
    line = Line(agent(require=False))
    assert line.outcome == ("", "")
    line.asked().asked(1.0)
    assert line.outcome == ("announced", "")
    assert line.says("No.") == "" and line.tick(1000.0) == ""


def test_agent_without_consent_keeps_nothing():
    line = Line(agent("", False)).asked()
    assert line.says("No.") == "" and line.outcome == ("", "")


def test_yes_starts_the_recording():
    line = Line().asked()
    assert line.consent.is_open
    assert line.says("Yes, please.") == "Thank you. Hello."
    assert line.outcome == ("agreed", "started") and not line.consent.is_open


def test_no_discards_the_recording():
    line = Line().asked()
    assert line.says("No, thanks.") == NOT_RECORDED
    assert line.outcome == ("refused", "discarded")


def test_request_after_a_yes_is_left_to_the_engine():
    line = Line().asked()
    assert line.says("Yes. I would like two pizzas.") == ""
    assert line.outcome == ("agreed", "started")


def test_unclear_answer_is_asked_for_once_more():
    line = Line().asked()
    assert line.says("Hello?") == ASK
    assert line.outcome == ("", "")
    assert line.says("Two pizzas.") == ""
    assert line.outcome == ("no answer", "discarded")


def test_words_before_the_question_are_no_answer():
    line = Line()
    assert line.says("Yes.") == "" and line.tick(1000.0) == ""
    assert line.outcome == ("", "")


def test_silence_is_no_answer():
    line = Line().asked(5.0)
    assert line.tick(17.9, played_until=8.0) == ""
    assert line.tick(18.0, played_until=8.0) == NOT_RECORDED
    assert line.outcome == ("no answer", "discarded")
    assert line.tick(19.0, played_until=8.0) == ""


def test_caller_who_speaks_has_more_time_but_not_for_ever():
    line = Line().asked(5.0)
    for now in range(6, 65):
        line.consent.caller_speaks(float(now))
        assert line.tick(float(now)) == ""
    assert line.tick(65.0) == NOT_RECORDED


def test_lost_stream_is_no_answer():
    line = Line().asked()
    line.consent.call_over()
    assert line.outcome == ("no answer", "discarded")


def test_stream_lost_before_the_question_leaves_it_open():
    line = Line()
    line.consent.call_over()
    assert line.outcome == ("", "")


def test_earlier_answer_stands():
    line = Line()
    line.session.consent = Consent.AGREED
    line.consent.agent_spoke(0.0)
    assert line.says("No.") == "" and line.session.consent is Consent.AGREED
