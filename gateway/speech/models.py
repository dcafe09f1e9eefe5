"""The models of the local engine, loaded together, or those that stand in for them."""

from dataclasses import dataclass
from typing import Protocol

from gateway.speech.config import DEFAULT_RECOGNISER, DEFAULT_VOICE, SpeechConfig
from gateway.speech.hibari_voice import HibariVoice
from gateway.speech.moonshine import Moonshine
from gateway.speech.remote import RemoteRecogniser, RemoteVoice
from gateway.speech.samples import Samples
from gateway.speech.vad import Silero
from gateway.speech.whisper import Whisper


class Recogniser(Protocol):
    """Safe to use from several threads, as all of these are."""

    def text_of(self, samples: Samples) -> str: ...


class Voice(Protocol):
    def say(self, text: str) -> bytes:
        """This text as mu-law."""


@dataclass(frozen=True)
class Models:
    silero: Silero
    recogniser: Recogniser
    voice: Voice

    @classmethod
    def load(cls, choices: SpeechConfig | None = None, api_key: str = "") -> "Models":
        """EngineRefused where one is missing or another than it should be. `api_key` is for those at an address."""
        choices = choices or SpeechConfig()
        return cls(Silero(), _recogniser(choices, api_key), _voice(choices, api_key))

    @property
    def are_remote(self) -> bool:
        """Whether one of them is at an address."""
        return isinstance(self.recogniser, RemoteRecogniser) or isinstance(self.voice, RemoteVoice)


def _recogniser(choices: SpeechConfig, api_key: str) -> Recogniser:
    if choices.recogniser == DEFAULT_RECOGNISER:
        return Moonshine()
    if choices.recogniser == "whisper":
        return Whisper(choices.recogniser_model)
    return RemoteRecogniser(choices.recogniser, choices.recogniser_model, api_key)


def _voice(choices: SpeechConfig, api_key: str) -> Voice:
    if choices.voice == DEFAULT_VOICE:
        return HibariVoice()
    return RemoteVoice(choices.voice, choices.voice_model, choices.voice_name, api_key)
