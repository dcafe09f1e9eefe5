"""
What we say in the place of the agent's own answer, told from that answer while both come from the engine.

The engine begins to think of an answer as soon as the caller has spoken. None of it may be heard: neither its words nor
its sound. No clock, no socket.
"""

import re


class ReplyOverride:
    """One call's. Nothing is held back until `begin`; then everything is, until what we wanted said is announced."""

    def __init__(self) -> None:
        self.holds = False
        """Whether what the engine sends is held back."""
        self._text = ""
        self._sound = bytearray()
        self._sound_first: bool | None = None

    def begin(self) -> None:
        """The caller has said something that we answer."""
        self.holds = True
        self._text = ""
        self._sound.clear()
        self._sound_first = None

    def says(self, text: str) -> None:
        """This is our answer; the engine has it now."""
        self._text = _words(text)

    def end(self) -> None:
        """The caller goes on, or the engine is another one: nothing is waited for any more."""
        self.holds = False

    def hold_sound(self, audio: bytes) -> None:
        self._sound += audio
        if self._sound_first is None:
            self._sound_first = True

    def takes(self, text: str) -> bytes | None:
        """
        The agent says this text: None if it is not ours, else the sound of it that came before.

        Engines differ in whether a sentence's sound comes before its text; within one answer they don't.
        """
        if self._sound_first is None:
            self._sound_first = False
        sound = bytes(self._sound) if self._sound_first else b""
        self._sound.clear()
        if not self._text or not self._text.startswith(_words(text)):
            return None
        self.holds = False
        return sound


def _words(text: str) -> str:
    return "".join(f"{word} " for word in re.findall(r"\w+", text.casefold()))
