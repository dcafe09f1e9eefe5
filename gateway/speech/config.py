"""
The recogniser and the voice of the local engine, read from the settings.

`LOCAL_RECOGNISER` is moonshine, whisper, whisper/MODEL, or the URL of a server with OpenAI's audio API and the model
after a #. `LOCAL_VOICE` is hibari, or such a URL with MODEL/VOICE after the #.
"""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urldefrag

from gateway.errors import SettingsError
from gateway.settings import is_url

DEFAULT_RECOGNISER: Final = "moonshine"
DEFAULT_VOICE: Final = "hibari"
_WHISPER_MODEL: Final = "base.en"
_EXAMPLE: Final = "http://127.0.0.1:8001/v1"


@dataclass(frozen=True)
class SpeechConfig:
    recogniser: str = DEFAULT_RECOGNISER
    """A name, or a URL."""
    recogniser_model: str = ""
    voice: str = DEFAULT_VOICE
    """A name, or a URL."""
    voice_model: str = ""
    voice_name: str = ""

    @classmethod
    def read(cls, recogniser: str, voice: str) -> "SpeechConfig":
        """Raises SettingsError."""
        recogniser_url, recogniser_model = _read_recogniser(recogniser)
        voice_url, model_and_name = _split(voice) if _is_url(voice) else (voice, "")
        if voice_url != DEFAULT_VOICE and not _is_url(voice_url):
            raise SettingsError(f"LOCAL_VOICE is {voice!r}; write hibari, or an address like {_EXAMPLE}#tts-1/alloy")
        model, _, name = model_and_name.partition("/")
        return cls(recogniser_url, recogniser_model, voice_url, model or "tts-1", name or "alloy")


def _read_recogniser(text: str) -> tuple[str, str]:
    if _is_url(text):
        url, model = _split(text)
        return url, model or "whisper-1"
    name, _, model = text.partition("/")
    if text == DEFAULT_RECOGNISER:
        return name, ""
    if name == "whisper":
        return name, model or _WHISPER_MODEL
    raise SettingsError(
        f"LOCAL_RECOGNISER is {text!r}; write moonshine, whisper/base.en, or an address like {_EXAMPLE}#whisper-1"
    )


def _is_url(text: str) -> bool:
    return is_url(text, ("http", "https"))


def _split(text: str) -> tuple[str, str]:
    url, fragment = urldefrag(text)
    return url.rstrip("/"), fragment
