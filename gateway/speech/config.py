"""
Which recogniser and which voice the local engine uses, as a person writes it down.

`LOCAL_RECOGNISER` is moonshine, whisper, whisper/MODEL, or the address of a server with OpenAI's audio interface,
with the model after a #. `LOCAL_VOICE` is hibari or such an address, with model/voice after the #.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urldefrag

from gateway.errors import SettingsError
from gateway.settings import is_url

DEFAULT_RECOGNISER: Final = "moonshine"
DEFAULT_VOICE: Final = "hibari"
_WHISPER_MODEL: Final = "base.en"


@dataclass(frozen=True)
class SpeechConfig:
    """Both, read and checked: a name, or an address with what stands behind its #."""

    recogniser: str = DEFAULT_RECOGNISER
    recogniser_model: str = ""
    voice: str = DEFAULT_VOICE
    voice_model: str = ""
    voice_name: str = ""

    @classmethod
    def read(cls, recogniser: str, voice: str) -> "SpeechConfig":
        """SettingsError for what is neither."""
        ears, ears_model = _recogniser(recogniser)
        tts_queue, model_and_name = _address(voice) if _is_address(voice) else (voice, "")
        if tts_queue != DEFAULT_VOICE and not _is_address(tts_queue):
            raise SettingsError(f"LOCAL_VOICE is {voice!r}; write hibari, or an address like {_EXAMPLE}#tts-1/alloy")
        model, _, name = model_and_name.partition("/")
        return cls(ears, ears_model, tts_queue, model or "tts-1", name or "alloy")


_EXAMPLE: Final = "http://127.0.0.1:8001/v1"


def _recogniser(text: str) -> tuple[str, str]:
    if _is_address(text):
        address, model = _address(text)
        return address, model or "whisper-1"
    name, _, model = text.partition("/")
    if text == DEFAULT_RECOGNISER:
        return name, ""
    if name == "whisper":
        return name, model or _WHISPER_MODEL
    raise SettingsError(
        f"LOCAL_RECOGNISER is {text!r}; write moonshine, whisper/base.en, or an address like {_EXAMPLE}#whisper-1"
    )


def _is_address(text: str) -> bool:
    return is_url(text, ("http", "https"))


def _address(text: str) -> tuple[str, str]:
    address, fragment = urldefrag(text)
    return address.rstrip("/"), fragment
