"""Caller audio that an engine may not have turned into text, so that another engine can. No clock, no socket."""

from collections import deque
from collections.abc import Iterator

from gateway.engines.interface import EngineEvent, TurnEnded, UserSaid, UserStartedSpeaking


class TurnAudio:
    """Keeps what one engine session was sent since the caller's last turn, up to `longest` frames."""

    def __init__(self, *, longest: int, before_speech: int) -> None:
        """`before_speech`: frames before an engine's report of speech that may belong to it."""
        self._frames: deque[bytes] = deque(maxlen=longest)
        self._before_speech = before_speech
        self._is_open = False
        """Whether a turn has begun whose text has not come."""
        self._is_speaking = False
        self._began = 0
        """The first frame of the turn that is being spoken; those before it belong to a turn whose text is due."""
        self.append = self._frames.append

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._frames)

    def new_session(self) -> None:
        """An engine session begins, without audio."""
        self._frames.clear()
        self._is_open = self._is_speaking = False

    def replayed(self) -> None:
        """What was sent so far comes from an earlier session: it may contain speech."""
        self._is_open = self._is_open or len(self._frames) > self._before_speech

    def observe(self, event: EngineEvent) -> None:
        """Drop what the engine has turned into text, or heard no speech in."""
        match event:
            case UserSaid(_, turn):  # a turn with a name may be an earlier one
                goes_on = bool(turn) and self._is_speaking
                self._keep(len(self._frames) - self._began if goes_on else 0)
                self._began, self._is_open = 0, goes_on
            case TurnEnded():
                self._is_speaking = False
        if not self._is_open:
            self._keep(self._before_speech)
        if isinstance(event, UserStartedSpeaking) and not self._is_speaking:
            self._began = max(len(self._frames) - self._before_speech, 0)
            self._is_open = self._is_speaking = True

    def _keep(self, newest: int) -> None:
        while len(self._frames) > newest:
            self._frames.popleft()
