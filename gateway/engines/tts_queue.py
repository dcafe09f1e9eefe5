"""What the local engine's agent says: texts in order, their sound as it comes, and what of it the caller has heard."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from gateway.audio import seconds_of


class Synthesizer(Protocol):
    """Makes sound of text. The sound of one may be ready before that of another that was asked for first."""

    def say(self, text: str) -> int: ...
    def hush(self) -> None: ...


@dataclass
class _Utterance:
    number: int
    text: str
    is_last: bool
    sound: list[bytes] = field(default_factory=list)
    is_spoken: bool = False
    begun: bool = False


class TtsQueue:
    """
    Says one text after another. `tell` is given each text when its sound begins, `play` the sound, and `done` is called
    after the last sound of an answer.

    The carrier plays what it is sent one after the other; how far it has come is told by a clock that runs with it.
    """

    def __init__(
        self,
        voice: Synthesizer,
        clock: Callable[[], float],
        *,
        tell: Callable[[str], None],
        play: Callable[[bytes], None],
        done: Callable[[], None],
    ) -> None:
        self._voice = voice
        self._clock = clock
        self._tell = tell
        self._play = play
        self._done = done
        self._queue: deque[_Utterance] = deque()
        self._held: list[tuple[str, bool]] | None = None
        self._played: list[tuple[str, bool, float]] = []
        """Texts whose sound has begun, whether it was the last of its answer, and when it will have been played."""
        self._played_until = 0.0
        self._owes_end = False

    def say(self, text: str, *, is_last: bool = False) -> None:
        if self._held is not None:
            self._held.append((text, is_last))
            return
        self._owes_end = not is_last
        self._queue.append(_Utterance(self._voice.say(text), text, is_last))

    def finish(self) -> None:
        """The answer is complete."""
        if self._held:
            self._held[-1] = (self._held[-1][0], True)
        elif self._held is None and self._queue:
            self._queue[-1].is_last = True
        elif self._owes_end:
            self._done()
        self._owes_end = False

    # While the caller speaks

    def hold(self) -> None:
        """Be silent. What was not heard, and what is still to be said, waits for `go_on` or `drop`."""
        now = self._clock()
        unheard = [(text, is_last) for text, is_last, end in self._played if end > now]
        waiting = [(saying.text, saying.is_last) for saying in self._queue if not saying.begun]
        self._held = [*unheard, *waiting, *(self._held or [])]
        self._queue.clear()
        self._played.clear()
        self._played_until = now
        self._voice.hush()

    def go_on(self) -> None:
        """It was nothing: say again what was not heard to its end, and the rest."""
        held, self._held = self._held or [], None
        for text, is_last in held:
            self.say(text, is_last=is_last)

    def drop(self) -> list[str]:
        """What was held back is void. Returns it."""
        held, self._held = self._held or [], None
        self._owes_end = False
        return [text for text, _ in held]

    # The voice's side

    def sound(self, number: int, audio: bytes) -> None:
        if self._queue and self._queue[0].number == number:
            self._sound_of(self._queue[0], audio)
        else:
            for saying in self._queue:
                if saying.number == number:
                    saying.sound.append(audio)

    def spoken(self, number: int) -> None:
        for saying in self._queue:
            saying.is_spoken |= saying.number == number
        while self._queue and self._queue[0].is_spoken:
            if self._queue.popleft().is_last:
                self._done()
            for audio in self._queue[0].sound if self._queue else ():
                self._sound_of(self._queue[0], audio)

    def _sound_of(self, saying: _Utterance, audio: bytes) -> None:
        now = self._clock()
        if not saying.begun:
            saying.begun = True
            self._played = [played for played in self._played if played[2] > now]
            self._tell(saying.text)
        else:
            self._played.pop()
        self._played_until = max(now, self._played_until) + seconds_of(len(audio))
        self._played.append((saying.text, saying.is_last, self._played_until))
        self._play(audio)
