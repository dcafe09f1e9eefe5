"""The cascade engine's speech output: streamed text as sentences in order, their audio, and how far it was played."""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.audio import BYTES_PER_SECOND, seconds_of
from gateway.engines.interface import WordEnd
from gateway.engines.speech_parts import VoiceStream

_END: Final = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|\n+")
_CLAUSE: Final = re.compile(r"[,;:–—](?=\s)")
_LONG: Final = 140
"""A sentence longer than this is split at a comma: its first audio takes as long as all of it."""
_BYTES_PER_CHARACTER: Final = 530
"""Speech at 15 characters a second, to estimate the length of a sentence whose audio has not all arrived."""
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
    waiting: list[bytes | tuple[WordEnd, ...]] = field(default_factory=list)
    """Audio and ends of words that came before it was this text's turn."""
    is_complete: bool = False
    has_begun: bool = False


@dataclass
class _Playing:
    """A text whose audio was sent, at least in part."""

    text: str
    is_last: bool
    sent: int = 0
    ends_at: float = 0.0
    """When the audio that was sent has been played, on the playout clock."""
    words: list[WordEnd] = field(default_factory=list)
    is_complete: bool = False
    """Whether all of its audio was sent."""

    def held(self, played: float) -> "_Held":
        """Interrupted when so many bytes of it were played."""
        if self.words:
            heard = max((word.characters for word in self.words if word.audio_bytes <= played), default=0)
        else:
            size = self.sent if self.is_complete else max(self.sent, len(self.text) * _BYTES_PER_CHARACTER)
            heard = self.text.rfind(" ", 0, int(max(played, 0) / max(size, 1) * len(self.text)) + 1) + 1
        return _Held(self.text, self.is_last, heard)


@dataclass
class _Held:
    """A text that was interrupted or has not begun."""

    text: str
    is_last: bool
    heard_characters: int = 0
    """Up to the end of the last word that was played; estimated by time where the voice does not report words."""


@dataclass(eq=False)
class TtsQueue:
    """
    Speaks one text after another.

    The voice works on several texts at once, and their audio may come out of order. `on_text` gets each text when its
    audio begins, `on_word_ends` where its words end, `on_audio` the audio; `on_done` is called after the last audio of
    an answer. `clock` returns seconds of playout: audio is sent faster than the carrier plays it.
    """

    voice: VoiceStream
    clock: Callable[[], float]
    on_text: Callable[[str], None] = field(kw_only=True)
    on_word_ends: Callable[[tuple[WordEnd, ...]], None] = field(kw_only=True)
    on_audio: Callable[[bytes], None] = field(kw_only=True)
    on_done: Callable[[], None] = field(kw_only=True)
    _queue: deque[_Utterance] = field(default_factory=deque, init=False)
    _held: list[_Held] | None = field(default=None, init=False)
    _playing: list[_Playing] = field(default_factory=list, init=False)
    _interrupted: list[_Playing] = field(default_factory=list, init=False)
    """What was playing at the last `hold`, and what had not begun."""
    _waiting: list[_Held] = field(default_factory=list, init=False)
    _played_until: float = field(default=0.0, init=False)
    _is_open: bool = field(default=False, init=False)
    """Whether an answer has begun whose end is not marked yet."""
    _last_played: str = field(default="", init=False)
    """The last text that was played to its end, as far as it is no longer in `_playing`."""

    @property
    def is_speaking(self) -> bool:
        """Whether the caller hears something, or is about to."""
        return self._held is None and (bool(self._queue) or self._is_open or self._played_until > self.clock())

    @property
    def is_unfinished(self) -> bool:
        """Whether some of the text has not been played, held or not."""
        return bool(self._held) or self.is_speaking

    @property
    def is_sent(self) -> bool:
        """Whether all audio of all answers so far was sent."""
        return self._held is None and not self._queue and not self._is_open

    @property
    def is_asking(self) -> bool:
        """Whether the caller hears a question, or has just heard one. While held: at the interruption."""
        playing, now = (self._playing, self.clock()) if self._held is None else (self._interrupted, self._played_until)
        ended = [self._last_played, *(item.text for item in playing if item.ends_at <= now)]
        current = [item.text for item in playing if item.ends_at > now]
        return any(text.rstrip().endswith("?") for text in (*ended[-1:], *current[:1]))

    def say(self, text: str, *, is_last: bool = False) -> None:
        if self._held is not None:
            self._held.append(_Held(text, is_last))
            return
        self._is_open = not is_last
        self._queue.append(_Utterance(self.voice.say(text), text, is_last))

    def finish(self) -> None:
        """The answer is complete."""
        if self._held:
            self._held[-1].is_last = True
        elif self._held is None and self._queue:
            self._queue[-1].is_last = True
        elif self._is_open:
            self.on_done()
        self._is_open = False

    # While the caller speaks

    def hold(self) -> None:
        """Stop. Text that was not played to its end is kept until `resume` or `drop`."""
        now = self.clock()
        self._waiting = [_Held(item.text, item.is_last) for item in self._queue if not item.has_begun]
        self._waiting += self._held or []
        self._interrupted, self._playing = self._playing, []
        self._held = [
            *(
                item.held(item.sent - (item.ends_at - now) * BYTES_PER_SECOND)
                for item in self._interrupted
                if item.ends_at > now
            ),
            *self._waiting,
        ]
        self._queue.clear()
        self._played_until = now
        self.voice.cancel_speech()

    def truncate(self, unheard_bytes: int) -> None:
        """After `hold`: the carrier knows how much of the audio that was sent was not played."""
        if self._held is None:
            return
        held: list[_Held] = []
        for item in reversed(self._interrupted):
            if unheard_bytes <= 0:
                break
            held.insert(0, item.held(item.sent - unheard_bytes))
            unheard_bytes -= item.sent
        self._held = [*held, *self._waiting]

    def resume(self) -> None:
        """Repeat the text that was interrupted, and say the rest."""
        held, self._held = self._held or [], None
        for item in held:
            self.say(item.text, is_last=item.is_last)

    def drop(self) -> list[str]:
        """Discard the held text. Returns the part that the caller did not hear."""
        held, self._held = self._held or [], None
        self._is_open = False
        return [unheard for item in held if (unheard := item.text[item.heard_characters :].strip())]

    # From the voice

    def receive_audio(self, number: int, audio: bytes) -> None:
        self._receive(number, audio)

    def receive_word_ends(self, number: int, ends: Sequence[WordEnd]) -> None:
        """Where the next words of this text end in its audio."""
        self._receive(number, tuple(ends))

    def receive_end(self, number: int) -> None:
        """The audio of this text is complete."""
        for item in self._queue:
            item.is_complete |= item.number == number
        while self._queue and self._queue[0].is_complete:
            item = self._queue.popleft()
            if not item.has_begun:  # its sound is part of the next text's audio
                self.on_text(item.text)
            elif self._playing:
                self._playing[-1].is_complete = True
            if item.is_last:
                self.on_done()
            for part in self._queue[0].waiting if self._queue else ():
                self._send(self._queue[0], part)

    def _receive(self, number: int, part: bytes | tuple[WordEnd, ...]) -> None:
        if self._queue and self._queue[0].number == number:
            self._send(self._queue[0], part)
            return
        for item in self._queue:
            if item.number == number:
                item.waiting.append(part)

    def _send(self, item: _Utterance, part: bytes | tuple[WordEnd, ...]) -> None:
        now = self.clock()
        if not item.has_begun:
            item.has_begun = True
            self._last_played = next((one.text for one in reversed(self._playing) if one.ends_at <= now), "")
            self._playing = [playing for playing in self._playing if playing.ends_at > now]
            self._playing.append(_Playing(item.text, item.is_last))
            self.on_text(item.text)
        playing = self._playing[-1]
        playing.is_last = item.is_last
        if isinstance(part, tuple):
            playing.words += part
            self.on_word_ends(part)
            return
        self._played_until = max(now, self._played_until) + seconds_of(len(part))
        playing.sent += len(part)
        playing.ends_at = self._played_until
        self.on_audio(part)
