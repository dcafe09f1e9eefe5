from datetime import UTC, datetime, timedelta

from gateway.calls.playout import MARK_BYTES
from gateway.engines.interface import FunctionCall, HistoryMessage, HistoryToolCall
from gateway.history.call_log import turns_from_rows
from gateway.session import Speaker, Turn
from tests.fakes.call_parts import make_transcript

NOW = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
SENTENCE = "one two three four"


class Talk:
    """A transcript and its playback, driven like a call drives them."""

    def __init__(self) -> None:
        self.transcript = make_transcript()
        self.playout = self.transcript.playout

    def speak(self, text: str, size: int, *, now: float = 0.0, done: bool = True) -> str:
        """The agent says it; returns the mark at the end of its sound."""
        self.transcript.agent_said(text, NOW)
        self.transcript.agent_audio(size, now)
        self.playout.audio_sent(size, now)
        if done:
            self.transcript.agent_audio_done()
        return self.playout.next_mark()


def test_sentences_between_two_turns_are_one_turn() -> None:
    talk = Talk()
    talk.speak("It is ready.", 1600)
    talk.speak("Come by on Friday.", 1600)
    talk.transcript.caller_said("Thank you.", NOW)
    assert talk.transcript.turns == [
        Turn(Speaker.AGENT, "It is ready. Come by on Friday.", NOW),
        Turn(Speaker.CALLER, "Thank you.", NOW),
    ]


def test_operator_words_are_a_turn_of_their_own() -> None:
    """Even if the engine splits them and changes a word."""
    talk = Talk()
    talk.speak("Let me check.", 1600)
    talk.transcript.operator_says("One moment, please. I am asking a colleague in the workshop.")
    talk.speak("One moment, please.", 1600)
    talk.speak("I'm asking a colleague in the workshop.", 1600)
    talk.speak("It is ready.", 1600)
    talk.transcript.caller_said("Thank you.", NOW)
    talk.speak("One moment, please.", 1600)
    said = [(turn.text, turn.by_operator) for turn in talk.transcript.so_far]
    assert said == [
        ("Let me check.", False),
        ("One moment, please. I'm asking a colleague in the workshop.", True),
        ("It is ready.", False),
        ("Thank you.", False),
        ("One moment, please.", False),
    ]
    rows = turns_from_rows(talk.transcript.log_rows)
    assert [(logged.turn.text, logged.turn.by_operator) for logged in rows] == said


def test_refused_operator_words_hide_no_later_ones() -> None:
    talk = Talk()
    talk.transcript.operator_says("This was refused.")
    talk.transcript.operator_says("Your bike is ready.")
    talk.speak("Your bike is ready.", 1600)
    assert [turn.by_operator for turn in talk.transcript.so_far] == [True]


def test_text_without_words_is_no_operators() -> None:
    talk = Talk()
    talk.transcript.operator_says("Your bike is ready.")
    talk.speak("…", 160)
    talk.speak("Your bike is ready.", 1600)
    assert [turn.by_operator for turn in talk.transcript.so_far] == [False, True]


def test_excerpt_ends_in_no_part_of_a_secret() -> None:
    """Half of a card number is not recognised as one, so what is cut at its end is left out."""
    keys = " ".join(f"sk-ant-{letter * 90}" for letter in "abc")
    text = f"{keys} {'x' * (390 - len(keys))} 4111 1111 1111 1111 and so on"
    shown = make_transcript().excerpt(text)
    assert len(shown) <= 300 and "aaa" not in shown and "4111" not in shown
    assert make_transcript().excerpt("It is ready.") == "It is ready."


def test_what_is_off_record_is_known_and_not_kept() -> None:
    talk = Talk()
    talk.transcript.go_off_record(True)
    talk.transcript.caller_said("Between us.", NOW)
    talk.speak("My lips are sealed.", 1600)
    assert [turn.text for turn in talk.transcript.so_far] == ["Between us.", "My lips are sealed."]
    assert [row for row in talk.transcript.log_rows if "text" in row] == []
    talk.transcript.go_off_record(False)
    talk.transcript.caller_said("Thank you.", NOW)
    assert [turn.text for turn in talk.transcript.finish(1.0)] == ["Thank you."]


def test_interruption_keeps_what_was_heard() -> None:
    talk = Talk()
    greeting = talk.speak("Hello.", 1600)
    talk.playout.mark_reached(greeting, 0.1)
    talk.transcript.caller_said("Hi.", NOW)
    first_half = talk.speak("one two", 4500, done=False)
    talk.playout.mark_reached(first_half, 0.1)
    talk.speak("three four", 4500)
    talk.transcript.interrupted(1.0)
    assert talk.transcript.turns[-1] == Turn(Speaker.AGENT, "one two", NOW, unheard="three four")
    assert not talk.transcript.turns[-1].heard


def test_carrier_without_marks_is_judged_by_time() -> None:
    talk = Talk()
    talk.speak(SENTENCE, 9540, now=10.0, done=False)
    talk.transcript.interrupted(10.0 + 4500 / 8000)
    assert talk.transcript.turns[-1].text == "one two"


def test_answer_that_was_played_out_is_whole() -> None:
    """The engine never said that it was complete; a short sound need not be the beginning of a long one."""
    talk = Talk()
    mark = talk.speak(SENTENCE, MARK_BYTES, done=False)
    talk.transcript.agent_audio(800, 0.0)
    talk.playout.audio_sent(800, 0.0)
    talk.playout.mark_reached(mark, 0.1)
    talk.transcript.agent_said("five six", NOW)
    assert talk.transcript.interrupted(0.2) is not None
    assert talk.transcript.turns == [Turn(Speaker.AGENT, SENTENCE, NOW, unheard="five six")]


def test_sentence_whose_sound_did_not_come_is_not_heard() -> None:
    talk = Talk()
    talk.transcript.agent_said("one two", NOW)
    talk.playout.mark_reached(talk.speak("three four", MARK_BYTES, done=False), 0.4)
    talk.transcript.interrupted(1.0)
    assert "four" not in talk.transcript.turns[-1].text


def test_played_out_is_judged_by_time_without_marks() -> None:
    talk = Talk()
    talk.speak(SENTENCE, 1600, now=10.0, done=False)
    assert talk.transcript.interrupted(10.3) is None
    assert talk.transcript.turns == [Turn(Speaker.AGENT, SENTENCE, NOW)]


def test_finished_answer_is_believed_without_marks() -> None:
    talk = Talk()
    talk.speak(SENTENCE, 9000, now=10.0)
    talk.transcript.interrupted(10.1)
    assert talk.transcript.turns == [Turn(Speaker.AGENT, SENTENCE, NOW)]


def test_hangup_cuts_an_answer_that_was_being_played() -> None:
    talk = Talk()
    half = talk.speak("one two", 4500, done=False)
    talk.playout.mark_reached(half, 0.1)
    talk.speak("three four", 4500)
    assert talk.transcript.finish(1.0) == [Turn(Speaker.AGENT, "one two", NOW, unheard="three four")]


def test_silent_carrier_is_believed_at_the_end() -> None:
    """Without a single echo nothing shows that the answer was not heard, and nothing said is lost."""
    talk = Talk()
    talk.speak(SENTENCE, 9000)
    assert talk.transcript.finish(0.1) == [Turn(Speaker.AGENT, SENTENCE, NOW)]


def test_last_stretch_counts_without_the_engines_end() -> None:
    talk = Talk()
    mark = talk.speak("one two three", MARK_BYTES, done=False)
    talk.playout.mark_reached(mark, 0.1)
    talk.transcript.agent_audio(MARK_BYTES - 1, 0.5)
    talk.playout.audio_sent(MARK_BYTES - 1, 0.0)
    assert talk.transcript.finish(1.0)[0].text == "one two three"


def test_conversation_so_far_has_the_open_answer() -> None:
    talk = Talk()
    talk.transcript.caller_said("Hello?", NOW)
    talk.speak("Hi.", 1600, done=False)
    assert [turn.text for turn in talk.transcript.so_far] == ["Hello?", "Hi."]
    assert [turn.text for turn in talk.transcript.turns] == ["Hello?"]


def test_sound_without_words_is_no_turn() -> None:
    talk = Talk()
    talk.transcript.agent_audio(1600, 0.0)
    assert talk.transcript.finish(1.0) == []


def test_unplayed_milliseconds_are_interpolated() -> None:
    """Marks come every 400 ms; between them the carrier plays in real time."""
    talk = Talk()
    mark = talk.speak("one two", MARK_BYTES, now=1.0, done=False)
    talk.speak("three four", MARK_BYTES, now=1.01, done=False)
    talk.speak("five six", MARK_BYTES, now=1.02)
    talk.playout.mark_reached(mark, 1.45)
    assert talk.transcript.interrupted(1.65) == 1200 - 400 - 200
    assert talk.transcript.turns[-1].text == "one two"


def test_sound_without_text_can_be_cut_off() -> None:
    talk = Talk()
    talk.transcript.agent_audio(8000, 0.0)
    assert talk.transcript.interrupted(0.25) == 750


LATER, LATEST = NOW + timedelta(seconds=2), NOW + timedelta(seconds=9)


def test_late_text_goes_before_the_answer() -> None:
    talk = Talk()
    talk.transcript.caller_finished("u1", NOW)
    assert talk.transcript.awaits_text
    talk.transcript.agent_said("It is ready.", LATER)
    assert talk.transcript.is_answered("u1")
    talk.transcript.caller_said("Is it ready?", LATEST, "u1")
    talk.transcript.agent_said("Come by on Friday.", LATEST)
    assert not talk.transcript.awaits_text
    assert talk.transcript.finish(1.0) == [
        Turn(Speaker.CALLER, "Is it ready?", NOW),
        Turn(Speaker.AGENT, "It is ready. Come by on Friday.", LATER),
    ]


def test_texts_that_come_in_the_wrong_order_are_sorted() -> None:
    talk = Talk()
    talk.transcript.caller_finished("u1", NOW)
    talk.transcript.agent_said("It is ready.", NOW + timedelta(seconds=1))
    talk.transcript.caller_finished("u2", LATER)
    talk.transcript.caller_said("Thank you.", LATEST, "u2")
    assert talk.transcript.answer_before("u1") == ""
    talk.transcript.caller_said("Is it ready?", LATEST, "u1")
    assert [turn.text for turn in talk.transcript.turns] == ["Is it ready?", "It is ready.", "Thank you."]


def test_turn_without_words_is_no_turn() -> None:
    talk = Talk()
    talk.transcript.caller_finished("u1", NOW)
    talk.transcript.had_no_words("u1")
    assert (talk.transcript.awaits_text, talk.transcript.turns) == (False, [])


# Functions

USED = HistoryToolCall(FunctionCall("f1", "order_status", ""), "ready")


def test_tool_calls_stand_in_their_places() -> None:
    talk = Talk()
    talk.transcript.caller_said("Is it ready?", NOW)
    talk.transcript.agent_said("Let me see.", NOW)
    talk.transcript.tool_called(USED)
    talk.transcript.agent_said("It is.", NOW)
    assert talk.transcript.history == [
        HistoryMessage("user", "Is it ready?"),
        USED,
        HistoryMessage("assistant", "Let me see. It is."),
    ]


def test_history_has_only_the_last_tool_calls() -> None:
    talk = Talk()
    uses = [HistoryToolCall(FunctionCall(f"f{number}", "order_status", ""), "ready") for number in range(30)]
    for used in uses:
        talk.transcript.tool_called(used)
    assert talk.transcript.history == uses[10:]


def test_functions_are_taken_back_with_what_was_said() -> None:
    talk = Talk()
    talk.transcript.caller_said("Is order A12 ready?", NOW)
    talk.transcript.tool_called(USED)
    talk.transcript.retract(talk.transcript.turns)
    assert talk.transcript.history == []


def test_playing_time_is_estimated() -> None:
    talk = Talk()
    talk.speak("Hello.", 16000, now=5.0)
    talk.speak("How can I help you?", 8000, now=5.1)
    assert talk.transcript.played_until == 8.0
    talk.transcript.interrupted(6.0)
    assert talk.transcript.played_until == 6.0


def test_repeated_pin_is_removed():
    transcript = make_transcript()
    transcript.hide("Set my PIN to four seven one one.")
    transcript.caller_said("That is four seven one one, at 12 Main Street.", NOW)
    transcript.agent_said("Thank you, 4711 it is.", NOW)
    texts = [turn.text for turn in transcript.so_far]
    assert texts == ["That is [PIN removed], at 12 Main Street.", "Thank you, [PIN removed] it is."]
