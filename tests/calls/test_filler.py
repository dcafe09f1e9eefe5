import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.audio import BYTES_PER_SECOND, FRAME_BYTES, mulaw_to_linear
from gateway.calls.filler import QUEUED_SECONDS, Filler
from gateway.calls.playout import MARK_BYTES
from gateway.session import Speaker, Turn
from tests.fakes.call_parts import make_transcript
from tests.fakes.carrier import Playout as Phone

AT = datetime(2026, 2, 6, 23, 15, tzinfo=UTC)
TICK = 0.1
AFTER = 1.0
TAPS = bytes(range(1, 251)) * 7
VOICE = b"\x00"
ANSWER = "one two three four five six seven eight nine ten"
ANSWER_SOUND = VOICE * 16000
PHRASE = "One moment. Let me see."
PHRASE_SOUND = b"\xfe" * 4000


class Line:
    """A caller's phone in real time, and a call that uses its filler the way the pipeline does."""

    def __init__(self, *, sound: bytes | None = None, phrases: Sequence[str] = (), echoes: bool = True) -> None:
        self.now = 100.0
        self.phone = Phone(bytearray(), speed=1, hold=False, clock=lambda: self.now)
        self.stops = 0
        self.asked: list[str] = []
        self.transcript = make_transcript()
        self.playout = self.transcript.playout
        self.filler = Filler(AFTER, sound, phrases, play=self.phone.add, say=self.asked.append, stop=self._stop)
        self._echoes = echoes

    @property
    def heard(self) -> bytes:
        self.phone.advance()
        return bytes(self.phone.heard)

    def passes(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + TICK, end)
            self.phone.advance()
            while self.phone.reached:
                mark = self.phone.reached.popleft()
                if self._echoes:
                    self.playout.mark_reached(mark, self.now)
            self.filler.tick(self.now)

    def caller_starts_speaking(self) -> None:
        self.filler.caller_speaks()
        self.phone.clear()
        self.transcript.interrupted(self.now)
        self.playout.cleared()

    def caller_says(self, text: str) -> None:
        self.transcript.caller_said(text, AT)
        self.filler.caller_finished(self.now)

    def agent_says(self, text: str) -> None:
        if self.filler.takes(text):
            return
        if self.playout.unmarked:
            self.phone.add(self.playout.next_mark())
        self.transcript.agent_said(text, AT)

    def agent_sounds(self, audio: bytes) -> None:
        if not self.filler.saying:
            self.filler.stop_playing()
        for start in range(0, len(audio), MARK_BYTES):
            stretch = audio[start : start + MARK_BYTES]
            if not self.filler.saying:
                self.transcript.agent_audio(len(stretch), self.now)
            self.phone.add(stretch)
            if self.playout.audio_sent(len(stretch), self.now):
                self.phone.add(self.playout.next_mark())

    def agent_is_done(self) -> None:
        if not self.filler.saying:
            self.transcript.agent_audio_done()
        self.filler.phrase_over()
        self.phone.add(self.playout.next_mark())

    def agent_answers(self) -> None:
        self.agent_says(ANSWER)
        self.agent_sounds(ANSWER_SOUND)
        self.agent_is_done()

    def _stop(self) -> None:
        self.stops += 1
        self.phone.clear()
        self.playout.cleared()


# The sound


def test_sound_begins_when_the_answer_is_late() -> None:
    line = Line(sound=TAPS)
    line.caller_says("Is it ready?")
    line.passes(AFTER - 0.01)
    assert not line.phone.queued
    line.passes(AFTER)
    assert TAPS.startswith(line.heard[:1000]) and len(line.heard) > 1000


def test_answer_in_time_needs_no_filler() -> None:
    line = Line(sound=TAPS)
    line.caller_says("Is it ready?")
    line.passes(AFTER - 0.01)
    line.agent_answers()
    line.passes(5.0)
    assert (line.heard, line.stops) == (ANSWER_SOUND, 0)


def test_answer_stops_the_sound_once_and_at_once() -> None:
    line = Line(sound=TAPS)
    line.caller_says("Is it ready?")
    line.passes(3.0)
    before = line.heard
    line.agent_sounds(ANSWER_SOUND)
    line.agent_sounds(ANSWER_SOUND)
    line.passes(10.0)
    assert line.heard == before + ANSWER_SOUND * 2
    assert line.stops == 1


def test_caller_stops_the_sound_until_their_next_turn() -> None:
    line = Line(sound=TAPS)
    line.caller_says("Is it ready?")
    line.passes(3.0)
    before = line.heard
    line.caller_starts_speaking()
    line.passes(5.0)
    assert (line.heard, line.stops) == (before, 1)
    line.caller_says("The blue one.")
    line.passes(3.0)
    assert line.heard == before * 2


def test_finished_call_is_not_filled() -> None:
    line = Line(sound=TAPS)
    line.caller_says("Goodbye.")
    line.passes(2.0)
    line.filler.call_over()
    line.filler.caller_speaks()
    line.caller_says("Are you still there?")
    line.passes(5.0)
    assert (line.phone.queued, line.stops) == (0, 1)


def test_nothing_to_play_is_no_filler() -> None:
    line = Line()
    line.caller_says("Is it ready?")
    line.passes(5.0)
    line.agent_answers()
    assert (line.asked, line.stops) == ([], 0)


@given(st.lists(st.floats(0.001, 0.6), max_size=60), st.integers(1, 5000), st.floats(0.1, 5.0))
def test_carrier_never_holds_more_than_a_moment_of_it(pauses: list[float], size: int, longest: float) -> None:
    """However late the ticks are: the loop in order, in whole frames, and no longer than allowed."""
    sound = (TAPS * 3)[:size]
    now = queued_until = 0.0
    sent = b""

    def play(stretch: bytes) -> None:
        nonlocal queued_until, sent
        assert len(stretch) % FRAME_BYTES == 0
        sent += stretch
        queued_until = max(queued_until, now) + len(stretch) / BYTES_PER_SECOND

    filler = Filler(0.0, sound, (), play=play, say=lambda phrase: None, stop=lambda: None, longest=longest)
    filler.caller_finished(now)
    for pause in pauses:
        now += pause
        filler.tick(now)
        assert queued_until - now <= QUEUED_SECONDS + 1e-9
    assert sent == (sound * (len(sent) // size + 1))[: len(sent)]
    assert len(sent) <= longest * BYTES_PER_SECOND


# Phrases


def test_phrases_are_taken_in_turn() -> None:
    line = Line(phrases=["One moment.", "Let me see."], sound=TAPS)
    for _ in range(3):
        line.caller_starts_speaking()
        line.caller_says("Is it ready?")
        line.passes(10.0)
    assert line.asked == ["One moment.", "Let me see.", "One moment."]
    assert not line.heard


def test_second_phrase_waits_for_the_next_turn() -> None:
    line = Line(phrases=["One moment.", "Let me see."])
    line.caller_says("Is it ready?")
    line.passes(2.0)
    line.agent_sounds(PHRASE_SOUND)
    line.agent_says("One moment.")
    line.agent_is_done()
    line.passes(10.0)
    assert line.asked == ["One moment."]


def test_refused_phrase_does_not_take_the_answers_sound() -> None:
    line = Line(phrases=[PHRASE])
    line.caller_says("Is it ready?")
    line.passes(2.0)
    line.filler.phrase_over()
    assert not line.filler.saying


def test_interrupted_phrase_is_forgotten() -> None:
    line = Line(phrases=[PHRASE])
    line.caller_says("Is it ready?")
    line.passes(2.0)
    line.caller_starts_speaking()
    assert not line.filler.saying
    assert not line.filler.takes("One moment.")


# The transcript


def answered(line: Line, *, thinking: float, text_first: bool, gap: float, listening: float) -> list[Turn]:
    """A call with one answer, of which the caller hears a part. `gap`: from its text to its sound."""
    line.agent_says("Hello.")
    line.agent_sounds(VOICE * 4000)
    line.agent_is_done()
    line.passes(1.0)
    line.caller_starts_speaking()
    line.caller_says("Is it ready?")
    line.passes(thinking)
    if text_first:
        line.agent_says(ANSWER)
        line.passes(gap)
    line.agent_sounds(ANSWER_SOUND)
    if not text_first:
        line.agent_says(ANSWER)
    line.passes(listening)
    line.caller_starts_speaking()
    return line.transcript.finish(line.now)


@given(
    thinking=st.floats(0.0, 30.0),
    text_first=st.booleans(),
    gap=st.floats(0.0, 2.0),
    listening=st.floats(0.0, 3.0),
    echoes=st.booleans(),
)
def test_sound_leaves_no_trace_in_the_transcript(
    thinking: float, text_first: bool, gap: float, listening: float, echoes: bool
) -> None:
    """Every turn, heard and unheard, and every byte of speech the caller heard are those of a call without it."""
    filled, plain = Line(sound=TAPS, echoes=echoes), Line(echoes=echoes)
    turns, expected = (
        answered(line, thinking=thinking, text_first=text_first, gap=gap, listening=listening)
        for line in (filled, plain)
    )
    assert turns == expected
    assert filled.heard.count(VOICE) == plain.heard.count(VOICE)


def test_answer_after_the_sound_is_cut_where_it_was() -> None:
    line = Line(sound=TAPS)
    turns = answered(line, thinking=3.0, text_first=True, gap=0.5, listening=1.25)
    assert len(line.heard) > 4000 + 1.25 * BYTES_PER_SECOND
    # Three marks of 400 ms of an answer that is guessed at 3.2 s.
    assert turns[-1] == Turn(Speaker.AGENT, "one two three four", AT, unheard="five six seven eight nine ten")


@pytest.mark.parametrize("text_first", [True, False])
def test_phrase_leaves_no_trace_in_the_transcript(text_first: bool) -> None:
    line = Line(phrases=[PHRASE])
    line.caller_says("Is it ready?")
    line.passes(1.5)
    sentences = PHRASE.replace(". ", ".\n").splitlines()
    for sentence in sentences if text_first else ():
        line.agent_says(sentence)
    line.agent_sounds(PHRASE_SOUND)
    for sentence in () if text_first else sentences:
        line.agent_says(sentence)
    line.agent_is_done()
    line.passes(1.0)
    line.agent_answers()
    line.passes(0.85)  # two marks of 400 ms, of 2 s
    line.caller_starts_speaking()
    assert line.transcript.turns == [
        Turn(Speaker.CALLER, "Is it ready?", AT),
        Turn(Speaker.AGENT, "one two three four", AT, unheard="five six seven eight nine ten"),
    ]


def test_answer_that_overtakes_the_phrase_is_recognized() -> None:
    line = Line(phrases=[PHRASE])
    line.caller_says("Is it ready?")
    line.passes(1.5)
    assert line.filler.saying
    line.agent_answers()
    line.agent_says(PHRASE)
    line.agent_sounds(PHRASE_SOUND)
    line.passes(2.2)
    line.caller_starts_speaking()
    assert line.transcript.turns[-1] == Turn(Speaker.AGENT, ANSWER, AT)


# The bundled sound


def test_bundled_sound_is_soft_and_has_no_seam() -> None:
    sound = resources.files("gateway").joinpath("sounds/typing.ulaw").read_bytes()
    samples = [mulaw_to_linear(sample) for sample in sound]
    assert len(sound) == 4 * BYTES_PER_SECOND
    assert not any(samples[:FRAME_BYTES] + samples[-FRAME_BYTES:])
    assert 32768 * 10 ** (-31 / 20) < max(map(abs, samples)) < 32768 * 10 ** (-29 / 20)


def test_bundled_sound_is_what_the_script_makes(tmp_path: Path) -> None:
    script = Path(__file__).resolve().parents[2] / "scripts" / "make_sounds"
    subprocess.run([sys.executable, script, tmp_path], check=True)
    made = (tmp_path / "typing.ulaw").read_bytes()
    assert made == resources.files("gateway").joinpath("sounds/typing.ulaw").read_bytes()
