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
_HTTP: Final = ("http", "https")
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
        name, _, model = recogniser.partition("/")
        if is_url(recogniser, _HTTP):
            name, model = _split(recogniser)
            model = model or "whisper-1"
        elif name == "whisper":
            model = model or "base.en"
        elif recogniser != DEFAULT_RECOGNISER:
            expected = f"write moonshine, whisper/base.en, or an address like {_EXAMPLE}#whisper-1"
            raise SettingsError(f"LOCAL_RECOGNISER is {recogniser!r}; {expected}")
        if voice != DEFAULT_VOICE and not is_url(voice, _HTTP):
            raise SettingsError(f"LOCAL_VOICE is {voice!r}; write hibari, or an address like {_EXAMPLE}#tts-1/alloy")
        speaker, model_and_name = _split(voice)
        voice_model, _, voice_name = model_and_name.partition("/")
        return cls(name, model, speaker, voice_model or "tts-1", voice_name or "alloy")


def _split(url: str) -> tuple[str, str]:
    url, fragment = urldefrag(url)
    return url.rstrip("/"), fragment
