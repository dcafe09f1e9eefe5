"""Numbers, spellings and e-mail addresses: after the agent has asked for one, the engine waits for longer pauses."""

from gateway.calls.engine_connection import EngineConnection
from gateway.text.turn_taking import asks_for_dictation


class DictationWatch:
    """Follows what the agent asks for, answer by answer."""

    def __init__(self, language: str, engine: EngineConnection) -> None:
        self._language = language
        self._engine = engine
        self._expected = False
        self._is_new_answer = True

    def agent_said(self, text: str) -> None:
        """Part of an answer. It asks if any part of it does."""
        expected = asks_for_dictation(text, self._language) or (self._expected and not self._is_new_answer)
        self._is_new_answer = False
        if expected != self._expected:
            self._expected = expected
            self._engine.expect_dictation(expected)

    def caller_said(self) -> None:
        """The next part belongs to another answer."""
        self._is_new_answer = True

    def new_session(self) -> None:
        """The engine expects nothing yet."""
        self._expected = False
