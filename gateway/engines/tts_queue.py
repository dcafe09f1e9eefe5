"""The local engine's speech output: streamed text as sentences in order, their audio, and how far it was played."""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from gateway.audio import seconds_of
from gateway.engines.speech_worker import SpeechChannel

_END: Final = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|\n+")
_CLAUSE: Final = re.compile(r"[,;:–—](?=\s)")
_LONG: Final = 140
"""A sentence longer than this is split at a comma: its first audio takes as long as all of it."""
_NO_END: Final = re.compile(r"(?:\b(?:Mr|Mrs|Ms|Dr|St|Prof|No|vs|approx|apt)|\b[A-Z]|\b[ap]\.m)\.$", re.I)


class SentenceSplitter:
    """Splits one answer into sentences for a synthesizer, each as soon as it is complete."""

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        """Add text. Returns the sentences that it completes."""
        self._rest += text
        complete = []
        while cut := self._next_cut():
            complete.append(self._rest[:cut].strip())
            self._rest = self._rest[cut:]
        return [sentence for sentence in complete if sentence]

    def finish(self) -> list[str]:
        rest, self._rest = self._rest.strip(), ""
        return [rest] if rest else []

    def _next_cut(self) -> int:
        for end in _END.finditer(self._rest):
            if not _NO_END.search(self._rest, 0, end.end()):
                return end.end()
        if len(self._rest) > _LONG and (clauses := list(_CLAUSE.finditer(self._rest))):
            return clauses[-1].end()
        return 0


@dataclass
class _Utterance:
    number: int
    text: str
    is_last: bool
    audio: list[bytes] = field(default_factory=list)
    """What was synthesized before it was this text's turn."""
    is_complete: bool = False
    has_begun: bool = False


@dataclass(eq=False)
class TtsQueue:
    """
    Speaks one text after another.

    The synthesizer works on several texts at once, and their audio may come out of order. `on_text` gets each text when
    its audio begins, `on_audio` the audio; `on_done` is called after the last audio of an answer. `clock` returns
    seconds of playout: audio is sent faster than the carrier plays it.
    """

    synthesizer: SpeechChannel
    clock: Callable[[], float]
    on_text: Callable[[str], None] = field(kw_only=True)
    on_audio: Callable[[bytes], None] = field(kw_only=True)
    on_done: Callable[[], None] = field(kw_only=True)
    _queue: deque[_Utterance] = field(default_factory=deque, init=False)
    _held: list[tuple[str, bool]] | None = field(default=None, init=False)
    _playing: list[tuple[str, bool, float]] = field(default_factory=list, init=False)
    """Texts that were sent: text, whether it ends its answer, and when its playout ends."""
    _played_until: float = field(default=0.0, init=False)
    _is_open: bool = field(default=False, init=False)
    """Whether an answer has begun whose end is not marked yet."""

    def say(self, text: str, *, is_last: bool = False) -> None:
        if self._held is not None:
            self._held.append((text, is_last))
            return
        self._is_open = not is_last
        self._queue.append(_Utterance(self.synthesizer.say(text), text, is_last))

    def finish(self) -> None:
        """The answer is complete."""
        if self._held:
            self._held[-1] = (self._held[-1][0], True)
        elif self._held is None and self._queue:
            self._queue[-1].is_last = True
        elif self._is_open:
            self.on_done()
        self._is_open = False

    # While the caller speaks

    def hold(self) -> None:
        """Stop. Text that was not played to its end is kept until `resume` or `drop`."""
        now = self.clock()
        unheard = [(text, is_last) for text, is_last, end in self._playing if end > now]
        waiting = [(item.text, item.is_last) for item in self._queue if not item.has_begun]
        self._held = [*unheard, *waiting, *(self._held or [])]
        self._queue.clear()
        self._playing.clear()
        self._played_until = now
        self.synthesizer.cancel_speech()

    def resume(self) -> None:
        """Repeat the text that was interrupted, and say the rest."""
        held, self._held = self._held or [], None
        for text, is_last in held:
            self.say(text, is_last=is_last)

    def drop(self) -> list[str]:
        """Discard the held text. Returns it."""
        held, self._held = self._held or [], None
        self._is_open = False
        return [text for text, _ in held]

    # From the synthesizer

    def receive_audio(self, number: int, audio: bytes) -> None:
        if self._queue and self._queue[0].number == number:
            self._send(self._queue[0], audio)
            return
        for item in self._queue:
            if item.number == number:
                item.audio.append(audio)

    def receive_end(self, number: int) -> None:
        """The audio of this text is complete."""
        for item in self._queue:
            item.is_complete |= item.number == number
        while self._queue and self._queue[0].is_complete:
            if self._queue.popleft().is_last:
                self.on_done()
            for audio in self._queue[0].audio if self._queue else ():
                self._send(self._queue[0], audio)

    def _send(self, item: _Utterance, audio: bytes) -> None:
        now = self.clock()
        if item.has_begun:
            self._playing.pop()
        else:
            item.has_begun = True
            self._playing = [playing for playing in self._playing if playing[2] > now]
            self.on_text(item.text)
        self._played_until = max(now, self._played_until) + seconds_of(len(audio))
        self._playing.append((item.text, item.is_last, self._played_until))
        self.on_audio(audio)
