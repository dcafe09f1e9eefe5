"""Order of speech, and what remains of it after an interruption. The test plays the synthesizer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.engines.interface import WordEnd
from gateway.engines.tts_queue import SentenceSplitter, TtsQueue

SECOND = b"\x01" * 8000


class Stage:
    """A synthesizer that the test controls, and what the queue sent."""

    def __init__(self):
        self.asked, self.cancelled, self.now, self.out = [], 0, 0.0, []
        self.tts_queue = TtsQueue(
            self,
            lambda: self.now,
            on_text=lambda text: self.out.append(text),
            on_word_ends=lambda ends: self.out.append(ends),
            on_audio=lambda audio: self.out.append(len(audio) / 8000),
            on_done=lambda: self.out.append("DONE"),
        )

    def say(self, text):
        self.asked.append(text)
        return len(self.asked)

    def cancel_speech(self):
        self.cancelled += 1

    def synthesizes(self, number, audio=SECOND):
        self.tts_queue.receive_audio(number, audio)
        self.tts_queue.receive_end(number)


@pytest.fixture
def stage():
    return Stage()


def test_audio_passes_as_it_comes(stage):
    stage.tts_queue.say("Hello.")
    stage.tts_queue.finish()
    stage.tts_queue.receive_audio(1, SECOND)
    stage.tts_queue.receive_audio(1, SECOND)
    assert stage.out == ["Hello.", 1.0, 1.0]
    stage.tts_queue.receive_end(1)
    assert stage.out[3:] == ["DONE"]


def test_sentences_keep_their_order(stage):
    stage.tts_queue.say("One.")
    stage.tts_queue.say("Two.")
    stage.tts_queue.finish()
    stage.synthesizes(2)
    assert stage.out == []
    stage.synthesizes(1)
    assert stage.out == ["One.", 1.0, "Two.", 1.0, "DONE"]


def test_answer_may_end_after_its_audio(stage):
    stage.tts_queue.say("One.")
    stage.synthesizes(1)
    stage.tts_queue.finish()
    assert stage.out == ["One.", 1.0, "DONE"]


def test_empty_answer_has_no_end(stage):
    stage.tts_queue.finish()
    assert stage.out == []


def test_interrupted_text_is_repeated(stage):
    for text in ("One.", "Two.", "Three."):
        stage.tts_queue.say(text)
    stage.tts_queue.finish()
    stage.synthesizes(1)
    stage.synthesizes(2)
    stage.now = 1.5  # during the second
    stage.tts_queue.hold()
    stage.synthesizes(3)
    assert stage.cancelled == 1
    assert stage.out == ["One.", 1.0, "Two.", 1.0]
    stage.tts_queue.resume()
    assert stage.asked[3:] == ["Two.", "Three."]
    stage.synthesizes(4)
    stage.synthesizes(5)
    assert stage.out[4:] == ["Two.", 1.0, "Three.", 1.0, "DONE"]


def test_text_waits_while_the_caller_speaks(stage):
    stage.tts_queue.hold()
    stage.tts_queue.say("One.")
    stage.tts_queue.finish()
    assert stage.asked == []
    stage.tts_queue.resume()
    stage.synthesizes(1)
    assert stage.out == ["One.", 1.0, "DONE"]


def test_dropped_answer_is_over(stage):
    stage.tts_queue.say("One.")
    stage.tts_queue.say("Two.")
    stage.synthesizes(1)
    stage.now = 2.0
    stage.tts_queue.hold()
    assert stage.tts_queue.drop() == ["Two."]
    stage.tts_queue.say("Other.")
    stage.tts_queue.finish()
    stage.synthesizes(3)
    assert stage.out == ["One.", 1.0, "Other.", 1.0, "DONE"]


def test_heard_words_of_an_interrupted_text_are_kept(stage):
    stage.tts_queue.say("One two three.")
    stage.tts_queue.receive_word_ends(1, [WordEnd(3, 4000), WordEnd(7, 8000)])
    stage.tts_queue.receive_audio(1, SECOND)
    stage.tts_queue.receive_word_ends(1, [WordEnd(14, 12000)])
    stage.tts_queue.receive_audio(1, SECOND)
    assert stage.out == ["One two three.", (WordEnd(3, 4000), WordEnd(7, 8000)), 1.0, (WordEnd(14, 12000),), 1.0]
    stage.now = 1.2
    stage.tts_queue.hold()
    assert stage.tts_queue.drop() == ["three."]


@pytest.mark.parametrize(
    "unheard, left", [(0, ["Three."]), (1, ["two.", "Three."]), (8000, ["One two.", "Three."]), (99999, None)]
)
def test_carrier_knows_best_what_was_heard(stage, unheard, left):
    for text in ("Zero.", "One two.", "Three."):
        stage.tts_queue.say(text)
    stage.synthesizes(1)
    stage.tts_queue.receive_word_ends(2, [WordEnd(3, 4000), WordEnd(8, 8000)])
    stage.tts_queue.receive_audio(2, SECOND)
    stage.tts_queue.hold()
    stage.tts_queue.truncate(unheard)
    assert stage.tts_queue.drop() == (left or ["Zero.", "One two.", "Three."])


def test_words_wait_for_their_turn(stage):
    stage.tts_queue.say("One.")
    stage.tts_queue.say("Two.")
    stage.tts_queue.receive_word_ends(2, [WordEnd(4, 4000)])
    stage.tts_queue.receive_audio(2, SECOND)
    stage.synthesizes(1)
    assert stage.out == ["One.", 1.0, "Two.", (WordEnd(4, 4000),), 1.0]


def test_words_count_from_audio_that_came_late(stage):
    """The voice paused within a sentence: what was played is counted back from its end."""
    stage.tts_queue.say("One two.")
    stage.tts_queue.receive_word_ends(1, [WordEnd(3, 8000), WordEnd(8, 16000)])
    stage.tts_queue.receive_audio(1, SECOND)
    stage.now = 5.0
    stage.tts_queue.receive_audio(1, SECOND)
    stage.now = 5.5
    stage.tts_queue.hold()
    assert stage.tts_queue.drop() == ["two."]


def test_text_whose_sound_is_in_the_next_one_is_reported(stage):
    stage.tts_queue.say("One.")
    stage.tts_queue.say("Two.")
    stage.tts_queue.receive_end(1)
    stage.synthesizes(2)
    assert stage.out == ["One.", "Two.", 1.0]


# Sentences


def cut(text, size=1):
    sentences = SentenceSplitter()
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    return [sentence for piece in pieces for sentence in sentences.feed(piece)] + sentences.finish()


@pytest.mark.parametrize(
    "text, sentences",
    [
        ("Hello. How are you?", ["Hello.", "How are you?"]),
        ("Wait... what? Oh!", ["Wait...", "what?", "Oh!"]),
        ("Dr. Smith is at 3.5 miles. Go.", ["Dr. Smith is at 3.5 miles.", "Go."]),
        ('He said "yes." Then he left.', ['He said "yes."', "Then he left."]),
        ("It is at 3 p.m. on Friday.", ["It is at 3 p.m. on Friday."]),
        ("One line\nAnother line", ["One line", "Another line"]),
        ("", []),
    ],
)
def test_text_is_split_at_sentence_ends(text, sentences):
    assert cut(text) == sentences
    assert cut(text, size=1000) == sentences


def test_sentence_is_returned_before_the_next_is_complete():
    assert SentenceSplitter().feed("Hello there. I was just thin") == ["Hello there."]


def test_long_sentence_is_split_at_a_comma():
    text = "and then we went on " * 8 + "to the end, and " + "so on and so on " * 4
    assert cut(text)[0].endswith("the end,")


@given(st.text(alphabet="ab .!?,\n", max_size=400), st.integers(1, 40))
def test_no_word_is_lost(text, size):
    assert "".join(" ".join(cut(text, size)).split()) == "".join(text.split())


def test_heard_part_of_a_sentence_is_estimated_without_words(stage):
    stage.tts_queue.say("one two three four")
    stage.tts_queue.finish()
    stage.synthesizes(1)
    stage.now = 0.6
    stage.tts_queue.hold()
    assert stage.tts_queue.drop() == ["three four"]


def test_sentence_whose_audio_is_incomplete_was_not_heard_to_its_end(stage):
    stage.tts_queue.say("one two three four five six seven eight nine ten")
    stage.tts_queue.receive_audio(1, SECOND)
    stage.now = 0.99
    stage.tts_queue.hold()
    assert stage.tts_queue.drop() == ["four five six seven eight nine ten"]


def test_question_is_known_while_it_is_heard_and_just_after(stage):
    for text in ("Is it you?", "Good.", "Come in."):
        stage.tts_queue.say(text)
    stage.tts_queue.finish()
    for number in (1, 2, 3):
        stage.synthesizes(number)
    asking = []
    for stage.now in (0.5, 1.5, 2.5):
        asking.append(stage.tts_queue.is_asking)
    assert asking == [True, True, False]
    assert stage.tts_queue.is_speaking
    stage.now = 3.5
    assert not stage.tts_queue.is_speaking
    assert stage.tts_queue.is_sent


def test_question_is_known_while_speech_is_held(stage):
    stage.tts_queue.say("Is it you?")
    stage.tts_queue.say("Come in.")
    stage.tts_queue.finish()
    stage.synthesizes(1)
    stage.synthesizes(2)
    stage.now = 0.5
    stage.tts_queue.hold()
    stage.now = 9.0
    assert stage.tts_queue.is_asking
    assert (stage.tts_queue.is_unfinished, stage.tts_queue.is_speaking) == (True, False)
