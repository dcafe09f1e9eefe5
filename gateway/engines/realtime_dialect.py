"""
How the services with OpenAI's Realtime protocol differ, and the session that an agent's settings become at each.

Azure, and servers that people run themselves, have OpenAI's dialect.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from gateway.agents import Agent
from gateway.engines.interface import AgentFunction, AgentSettings, Patience

PCMU: Final = "audio/pcmu"
_PATIENCE: Final[dict[Patience, tuple[str, int]]] = {
    "short": ("high", 300),
    "normal": ("auto", 500),
    "long": ("low", 1000),
    "dictation": ("low", 1500),
}
"""The eagerness of semantic turn detection, and the milliseconds of silence that end a turn."""
_DEEPGRAM_VOICES: Final = ("aura", "flux")
_LIST_OF_WORDS: Final = "The caller may say: {}."


@dataclass(frozen=True)
class Dialect:
    """What distinguishes a service, and how its session is set up."""

    name: str
    model: str
    voice: str
    transcription: str
    words: str
    """The name of the list of expected words, in the transcription block."""
    language: str
    foreign_voices: frozenset[str] = frozenset()
    """Voices that only other services have."""
    is_flat: bool = False
    """Voice and turn detection are fields of the session, and it has no type."""
    has_semantic_vad: bool = True
    speaks_verbatim: bool = False
    """It has `force_message`, which is spoken as it is."""
    repeats_transcripts: bool = False
    """The text of a turn comes at each pause, from its beginning; the last one before the answer is final."""
    echoes_formats: bool = True
    """Its `session.updated` always has the audio formats."""

    def session(self, settings: AgentSettings) -> dict[str, Any]:
        """The settings of a call."""
        agent = settings.agent
        options: dict[str, Any] = dict(agent.realtime.get(self.name, {}))
        voice = options.get("voice") or agent.speak.get("model", "")
        if str(voice).startswith(_DEEPGRAM_VOICES) or str(voice) in self.foreign_voices:
            voice = self.voice
        listening: dict[str, Any] = {"format": {"type": PCMU}}
        if (transcription := options.get("transcription", self.transcription)) is not False:
            listening["transcription"] = self._transcribe(settings, transcription)
        if "noise_reduction" in options:
            listening["noise_reduction"] = {"type": options["noise_reduction"]}
        detection = self.turn_detection(agent, agent.patience)
        speaking = {"format": {"type": PCMU}}
        session = self.typed(
            {
                "instructions": settings.prompt,
                "audio": {"input": listening, "output": speaking},
                "tools": [tool(function) for function in settings.functions],
            }
        )
        if self.is_flat:
            session |= {"voice": voice, "turn_detection": detection}
        else:
            session["output_modalities"] = ["audio"]
            listening["turn_detection"] = detection
            session["audio"]["output"] = {**speaking, "voice": voice}
        return _merged(session, options.get("session", {}))

    def turn_detection(self, agent: Agent, patience: Patience) -> dict[str, Any]:
        """An agent that is not interrupted at once leaves it to us to interrupt and answer, by the text of a turn."""
        options = agent.realtime.get(self.name, {})
        by_itself = agent.interrupt == "at_once" or options.get("transcription") is False
        return _turn_detection(options.get("turn_detection"), self, patience, by_itself=by_itself)

    def _transcribe(self, settings: AgentSettings, given: Any) -> dict[str, Any]:
        block = {"model": given} if isinstance(given, str) else {"model": self.transcription, **given}
        if settings.agent.language:
            block.setdefault(self.language, settings.agent.language.partition("-")[0])
        if words := [*dict.fromkeys([*settings.agent.keyterms, *settings.keyterms])]:
            takes_list = self.is_flat or block["model"] in ("gpt-transcribe", "gpt-live-transcribe")
            if takes_list:
                block.setdefault(self.words, words)
            else:
                block.setdefault("prompt", _LIST_OF_WORDS.format(", ".join(words)))
        return block

    def typed(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Fields of the session, as a whole or as a change."""
        return fields if self.is_flat else {"type": "realtime", **fields}

    def format_problem(self, session: Mapping[str, Any]) -> str:
        """Without mu-law both sides would hear noise."""
        for side in ("input", "output"):
            beta_format = session.get(f"{side}_audio_format")
            found = table(table(table(session, "audio"), side), "format").get("type") or beta_format
            if found not in (PCMU, "g711_ulaw") and (found or self.echoes_formats):
                return f"it has no {PCMU} for {side}, but {found or 'no format'}"
        return ""


OPENAI_VOICES: Final = frozenset("alloy ash ballad coral echo sage shimmer verse marin cedar".split())
OPENAI: Final = Dialect(
    "openai", "gpt-realtime-2.1", "marin", "gpt-transcribe", "keywords", "language", frozenset({"eve", "ara", "rex"})
)
XAI: Final = Dialect(
    "xai",
    "grok-voice-latest",
    "eve",
    "grok-transcribe",
    "keyterms",
    "language_hint",
    OPENAI_VOICES,
    is_flat=True,
    has_semantic_vad=False,
    speaks_verbatim=True,
    repeats_transcripts=True,
    echoes_formats=False,
)


def _turn_detection(given: Any, dialect: Dialect, patience: Patience, *, by_itself: bool) -> dict[str, Any]:
    """
    Always whole: what is left out keeps its old value at the server.

    The agent's own values take precedence over its patience, but do not cut a dictation short.
    """
    table = {"type": f"{given}_vad"} if isinstance(given, str) else dict(given or {})
    kind = table.setdefault("type", "semantic_vad" if dialect.has_semantic_vad else "server_vad")
    is_semantic = dialect.has_semantic_vad and kind == "semantic_vad"
    eagerness, silence_ms = _PATIENCE[patience]
    pauses: dict[str, Any] = {"eagerness": eagerness} if is_semantic else {"silence_duration_ms": silence_ms}
    table |= pauses if patience == "dictation" else {}
    if not dialect.has_semantic_vad:
        return {**pauses, "prefix_padding_ms": 333, **table, "type": "server_vad"}
    flags = {"create_response": by_itself, "interrupt_response": by_itself}
    if is_semantic:
        return {**pauses, **flags, **table}
    return {"threshold": 0.5, "prefix_padding_ms": 300, **pauses, **flags, **table}


def tool(function: AgentFunction) -> dict[str, Any]:
    return {
        "type": "function",
        "name": function.name,
        "description": function.description,
        "parameters": dict(function.parameters),
    }


def table(message: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A table inside a message; empty where it is missing or something else."""
    value = message.get(name)
    return value if isinstance(value, dict) else {}


def _merged(table: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(table.get(key), dict)
        table[key] = _merged(dict(table[key]), value) if both else value
    return table
