"""What the agent says, in order, and what is left of it when the caller speaks. The voice is the test itself."""

import pytest

from gateway.engines.tts_queue import TtsQueue

SECOND = b"\x01" * 8000


class Stage:
    """A voice that makes sound when the test tells it to, and what came out of the mouth."""

    def __init__(self):
        self.asked, self.hushes, self.now, self.out = [], 0, 0.0, []
        self.tts_queue = TtsQueue(
            self,
            lambda: self.now,
            tell=lambda text: self.out.append(text),
            play=lambda audio: self.out.append(len(audio) / 8000),
            done=lambda: self.out.append("DONE"),
        )

    def say(self, text):
        self.asked.append(text)
        return len(self.asked)

    def hush(self):
        self.hushes += 1

    def sounds(self, number, audio=SECOND):
        self.tts_queue.sound(number, audio)
        self.tts_queue.spoken(number)


@pytest.fixture
def stage():
    return Stage()


def test_sound_passes_as_it_comes(stage):
    stage.tts_queue.say("Hello.")
    stage.tts_queue.finish()
    stage.tts_queue.sound(1, SECOND)
    stage.tts_queue.sound(1, SECOND)
    assert stage.out == ["Hello.", 1.0, 1.0]
    stage.tts_queue.spoken(1)
    assert stage.out[3:] == ["DONE"]


def test_sentences_keep_their_order(stage):
    stage.tts_queue.say("One.")
    stage.tts_queue.say("Two.")
    stage.tts_queue.finish()
    stage.sounds(2)
    assert stage.out == []
    stage.sounds(1)
    assert stage.out == ["One.", 1.0, "Two.", 1.0, "DONE"]


def test_an_answer_may_end_after_its_sound(stage):
    stage.tts_queue.say("One.")
    stage.sounds(1)
    stage.tts_queue.finish()
    assert stage.out == ["One.", 1.0, "DONE"]


def test_an_empty_answer_has_no_end(stage):
    stage.tts_queue.finish()
    assert stage.out == []


def test_what_was_not_heard_is_said_again(stage):
    for text in ("One.", "Two.", "Three."):
        stage.tts_queue.say(text)
    stage.tts_queue.finish()
    stage.sounds(1)
    stage.sounds(2)
    stage.now = 1.5  # in the midst of the second
    stage.tts_queue.hold()
    stage.sounds(3)
    assert stage.hushes == 1
    assert stage.out == ["One.", 1.0, "Two.", 1.0]
    stage.tts_queue.go_on()
    assert stage.asked[3:] == ["Two.", "Three."]
    stage.sounds(4)
    stage.sounds(5)
    assert stage.out[4:] == ["Two.", 1.0, "Three.", 1.0, "DONE"]


def test_what_comes_while_the_caller_speaks_waits(stage):
    stage.tts_queue.hold()
    stage.tts_queue.say("One.")
    stage.tts_queue.finish()
    assert stage.asked == []
    stage.tts_queue.go_on()
    stage.sounds(1)
    assert stage.out == ["One.", 1.0, "DONE"]


def test_a_dropped_answer_is_over(stage):
    stage.tts_queue.say("One.")
    stage.tts_queue.say("Two.")
    stage.sounds(1)
    stage.now = 2.0
    stage.tts_queue.hold()
    assert stage.tts_queue.drop() == ["Two."]
    stage.tts_queue.say("Other.")
    stage.tts_queue.finish()
    stage.sounds(3)
    assert stage.out == ["One.", 1.0, "Other.", 1.0, "DONE"]
