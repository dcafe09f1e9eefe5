"""
The recognisers and voices that `engine = { listen = …, speak = … }` of an agent may name.

To add one: write its codec, and a case here that makes its service from the settings.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from gateway.agents import Agent
from gateway.engines import cartesia_voice, deepgram_speech, elevenlabs_voice
from gateway.engines.cascade import CascadeEngine
from gateway.engines.local import LocalSpeech
from gateway.engines.openai_transcription import WITHOUT_TURNS, OpenAiTranscriptionCodec
from gateway.engines.speech_parts import RecogniserService, VoiceService
from gateway.engines.streaming import ServiceEndpoint, StreamingRecogniserService, StreamingVoiceService
from gateway.errors import SettingsError
from gateway.settings import Secret, Settings
from gateway.websocket.interface import Connector, tls_context

_RECOGNISERS: Final = "local, deepgram/MODEL or openai/MODEL"
_VOICES: Final = "local, deepgram/VOICE, elevenlabs/VOICE or cartesia/VOICE"


@dataclass(frozen=True)
class SpeechServices:
    """Makes the parts of one agent's engine, with its language and patience."""

    settings: Settings
    connect: Connector
    local: Callable[[], LocalSpeech]
    """Raises SettingsError where it is not installed."""
    where: str
    """The setting that names the parts, for errors."""
    agent: Agent

    def engine(self, name: str, listen: str, speak: str) -> CascadeEngine:
        """Raises SettingsError."""
        tls_context()  # reads the machine's certificates now, not during the first call
        return CascadeEngine(name, self._recogniser(listen), self._voice(speak))

    def _recogniser(self, entry: str) -> RecogniserService:
        provider, _, model = entry.partition("/")
        language, patience = self.agent.language, self.agent.patience
        match provider:
            case "local" if not model:
                return self.local()
            case "deepgram" if model:
                endpoint = self._deepgram(entry, deepgram_speech.listen_path(model, language, patience), "listen")
                if deepgram_speech.is_flux(model):
                    return StreamingRecogniserService(endpoint, deepgram_speech.FluxCodec)
                takes_keyterms = model.startswith("nova-3")
                return StreamingRecogniserService(
                    endpoint, lambda: deepgram_speech.NovaCodec(takes_keyterms=takes_keyterms)
                )
            case "openai" if model in WITHOUT_TURNS:
                problem = "detects no turns; use gpt-transcribe or gpt-4o-transcribe"
                raise SettingsError(f"{self.where}.listen: {model} {problem}")
            case "openai" if model:
                url = f"{_socket_url(self.settings.openai_base_url)}/realtime?intent=transcription"
                key = self._key(entry, "listen", self.settings.openai_api_key, "OPENAI_API_KEY")
                credentials = Secret(f"Bearer {key.reveal()}")
                endpoint = ServiceEndpoint(
                    entry, url, "Authorization", credentials, "OPENAI_API_KEY", connect=self.connect
                )
                return StreamingRecogniserService(endpoint, lambda: OpenAiTranscriptionCodec(model, language, patience))
            case _:
                raise SettingsError(f"{self.where}.listen is {entry!r}; write {_RECOGNISERS}")

    def _voice(self, entry: str) -> VoiceService:
        provider, _, rest = entry.partition("/")
        voice, _, model = rest.partition("/")
        match provider:
            case "local" if not rest:
                return self.local()
            case "deepgram" if voice and not model:
                endpoint = self._deepgram(entry, deepgram_speech.speak_path(voice), "speak")
                if deepgram_speech.is_flux(voice):
                    return StreamingVoiceService(endpoint, deepgram_speech.FluxVoiceCodec)
                return StreamingVoiceService(
                    endpoint, lambda: deepgram_speech.AuraCodec(asyncio.get_running_loop().time)
                )
            case "elevenlabs" if voice:
                path = elevenlabs_voice.speak_path(voice, model or elevenlabs_voice.DEFAULT_MODEL, self.agent.language)
                url = f"{_socket_url(self.settings.elevenlabs_api_url)}{path}"
                key = self._key(entry, "speak", self.settings.elevenlabs_api_key, "ELEVENLABS_API_KEY")
                endpoint = ServiceEndpoint(entry, url, "xi-api-key", key, "ELEVENLABS_API_KEY", connect=self.connect)
                return StreamingVoiceService(endpoint, elevenlabs_voice.ElevenLabsCodec)
            case "cartesia" if voice:
                key = self._key(entry, "speak", self.settings.cartesia_api_key, "CARTESIA_API_KEY")
                endpoint = ServiceEndpoint(
                    entry,
                    f"{self.settings.cartesia_api_url}{cartesia_voice.speak_path()}",
                    "Authorization",
                    Secret(f"Bearer {key.reveal()}"),
                    "CARTESIA_API_KEY",
                    connect=self.connect,
                )
                chosen = model or cartesia_voice.DEFAULT_MODEL
                return StreamingVoiceService(
                    endpoint, lambda: cartesia_voice.CartesiaCodec(voice, chosen, self.agent.language)
                )
            case _:
                raise SettingsError(f"{self.where}.speak is {entry!r}; write {_VOICES}")

    def _deepgram(self, entry: str, path: str, part: str) -> ServiceEndpoint:
        key = self._key(entry, part, self.settings.deepgram_api_key, "DEEPGRAM_API_KEY")
        url, credentials = f"{self.settings.deepgram_api_url}{path}", Secret(f"Token {key.reveal()}")
        return ServiceEndpoint(entry, url, "Authorization", credentials, "DEEPGRAM_API_KEY", connect=self.connect)

    def _key(self, entry: str, part: str, key: Secret | None, name: str) -> Secret:
        if not key:
            raise SettingsError(f"{self.where}.{part} {entry!r} needs {name}; set it in the environment or in .env")
        return key


def _socket_url(url: str) -> str:
    """The address of sockets beside an HTTP API."""
    return f"ws{url.removeprefix('http')}".rstrip("/")
