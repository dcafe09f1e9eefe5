"""
What Deepgram's Voice Agent takes from a client, as strictly as its documentation reads.

A wrong shape (missing, unknown or mistyped field) is UNPARSABLE_CLIENT_MESSAGE, a wrong value INVALID_SETTINGS, a voice
that does not exist FAILED_TO_SPEAK. Where the real server is said to be lenient, this one is not.
"""

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Check = Callable[[Any, str], None]

MANAGED_PROMPT_CHARACTERS = 25_000


class ClientMistake(Exception):
    """An invalid message, which the server answers with an Error of this code."""

    def __init__(self, code: str, description: str) -> None:
        super().__init__(f"{code}: {description}")
        self.code = code
        self.description = description


def parse(frame: str) -> dict[str, Any]:
    """Parse a text frame: a JSON object with a type."""
    try:
        message = json.loads(frame)
    except ValueError:
        raise _unparsable("message", "is not JSON") from None
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise _unparsable("message", "is not an object with a type")
    return message


def check_message(message: dict[str, Any]) -> list[str]:
    """Validate a message. Returns warning codes; raises ClientMistake if it is invalid."""
    kind = message["type"]
    if kind == "Settings":
        return _check_settings(message)
    if kind not in _MESSAGES:
        raise _unparsable("message", f"has the unknown type {kind!r}")
    _MESSAGES[kind](message, kind)
    return _check_speak(message["speak"]) if kind == "UpdateSpeak" else []


def check_listen(listen: dict[str, Any], where: str = "listen") -> None:
    """Nova (v1) and Flux (v2) have different fields; the version is not derived from the model name."""
    record({"provider": _anything})(listen, where)
    provider, where = listen["provider"], f"{where}.provider"
    if not isinstance(provider, dict):
        raise _unparsable(where, "is not an object")
    version, flux = provider.get("version", "v1"), str(provider.get("model", "")).startswith("flux-")
    if flux and version != "v2":
        raise _invalid(where, "a flux model needs version v2")
    variant("version", {"v1": _NOVA, "v2": _FLUX})({"version": version, **provider}, where)
    if version == "v2":
        _check_flux(provider, where)


def _check_flux(provider: dict[str, Any], where: str) -> None:
    if "language_hints" in provider and provider["model"] != "flux-general-multi":
        raise _invalid(where, "language_hints need flux-general-multi")
    if provider.get("eager_eot_threshold", 0) > provider.get("eot_threshold", 0.7):
        raise _invalid(where, "eager_eot_threshold is above eot_threshold")


def _check_settings(message: dict[str, Any]) -> list[str]:
    if isinstance(message.get("agent"), str):
        raise ClientMistake("INVALID_AGENT_ID", "no stored agent has this id")
    _SETTINGS(message, "Settings")
    agent = message["agent"]
    warnings = _check_speak(agent["speak"]) if "speak" in agent else []
    _check_output(message["audio"].get("output", {}), agent.get("speak", _DEFAULT_VOICE))
    return warnings


def _check_think(think: Any, where: str) -> None:
    _THINK(think, where)
    if think["provider"]["type"] in ("groq", "aws_bedrock") and "endpoint" not in think:
        raise _invalid(where, f"{think['provider']['type']} needs an endpoint")
    if "context_length" in think and "endpoint" not in think:
        raise _invalid(where, "context_length needs an endpoint")


def _check_speak(speak: Any) -> list[str]:
    """One voice, or a list in which failing voices are skipped with a warning."""
    chain = speak if isinstance(speak, list) else [speak]
    failures = [failure for failure in map(_voice_failure, chain) if failure]
    if len(failures) == len(chain):
        raise ClientMistake("FAILED_TO_SPEAK", failures[0] if failures else "no voice given")
    return ["SPEAK_REQUEST_FAILED"] * len(failures)


def _voice_failure(speak: dict[str, Any]) -> str | None:
    provider = speak["provider"]
    if provider["type"] != "deepgram":
        return None
    flux = provider.get("version", "v1") == "v2"
    if not re.fullmatch(r"flux-[a-z]+-en" if flux else r"aura(-2)?-[a-z]+-[a-z]{2}", provider["model"]):
        return "no such voice in this version"
    speed = provider.get("speed", 1.0)
    if not (0.5 if flux else 0.7) <= speed <= 1.5 or (flux and round(speed * 100) % 5):
        return "speed out of range"
    return None


def _check_output(output: dict[str, Any], speak: Any) -> None:
    encoding, where = output.get("encoding"), "Settings.audio.output"
    if "bitrate" in output and encoding not in ("mp3", "opus", "aac"):
        raise _invalid(where, f"{encoding} has no bitrate")
    chain = speak if isinstance(speak, list) else [speak]
    if not any(voice["provider"].get("version") == "v2" for voice in chain):
        return
    rates = {"linear16": range(8000, 48001), "mulaw": (8000, 16000), "alaw": (8000, 16000)}
    if encoding is not None and encoding not in rates:
        raise _invalid(where, f"Flux voices do not speak {encoding}")
    if output.get("sample_rate", 8000) not in rates.get(encoding or "linear16", ()):
        raise _invalid(where, "Flux voices do not speak at this sample_rate")
    if output.get("container", "none") != "none":
        raise _invalid(where, "Flux voices have no container")


# Field types


def text(value: Any, where: str) -> None:
    if not isinstance(value, str):
        raise _unparsable(where, "is not a string")


def flag(value: Any, where: str) -> None:
    if not isinstance(value, bool):
        raise _unparsable(where, "is not true or false")


def number(low: float, high: float, *, whole: bool = False) -> Check:
    def check(value: Any, where: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)):
            raise _unparsable(where, "is not a whole number" if whole else "is not a number")
        if not low <= value <= high:
            raise _invalid(where, f"is not between {low} and {high}")

    return check


def one_of(*choices: str) -> Check:
    def check(value: Any, where: str) -> None:
        text(value, where)
        if value not in choices:
            raise _invalid(where, f"is not one of {', '.join(choices)}")

    return check


def list_of(item: Check) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, list):
            raise _unparsable(where, "is not a list")
        for index, entry in enumerate(value):
            item(entry, f"{where}[{index}]")

    return check


def one_or_list(item: Check) -> Check:
    return lambda value, where: (list_of(item) if isinstance(value, list) else item)(value, where)


def table(value: Any, where: str) -> None:
    if not isinstance(value, dict) or not all(isinstance(entry, str) for entry in value.values()):
        raise _unparsable(where, "is not an object of strings")


def record(required: Mapping[str, Check], optional: Mapping[str, Check] | None = None) -> Check:
    fields = {**required, **(optional or {})}

    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict):
            raise _unparsable(where, "is not an object")
        for name in required.keys() - value.keys():
            raise _unparsable(f"{where}.{name}", "is missing")
        for name, entry in value.items():
            if name not in fields:
                raise _unparsable(f"{where}.{name}", "is unknown")
            fields[name](entry, f"{where}.{name}")

    return check


def variant(key: str, checks: dict[str, Check]) -> Check:
    def check(value: Any, where: str) -> None:
        if not isinstance(value, dict) or key not in value:
            raise _unparsable(f"{where}.{key}", "is missing")
        one_of(*checks)(value[key], f"{where}.{key}")
        checks[value[key]](value, where)

    return check


def _anything(value: Any, where: str) -> None:
    """A field that is validated elsewhere or not at all."""


def _parameters(value: Any, where: str) -> None:
    if not isinstance(value, dict) or value.get("type") != "object":
        raise _unparsable(where, "is not the JSON Schema of an object")


def _context_length(value: Any, where: str) -> None:
    if value != "max":
        number(1, float("inf"))(value, where)


def _filler(value: Any, where: str) -> None:
    raise _invalid(where, "needs think_live")


def _history(value: Any, where: str) -> None:
    (_HISTORY_CALLS if isinstance(value, dict) and "function_calls" in value else _HISTORY_TEXT)(value, where)


def _unparsable(where: str, problem: str) -> ClientMistake:
    return ClientMistake("UNPARSABLE_CLIENT_MESSAGE", f"{where} {problem}")


def _invalid(where: str, problem: str) -> ClientMistake:
    return ClientMistake("INVALID_SETTINGS", f"{where}: {problem}")


# Settings

_DEFAULT_VOICE = {"provider": {"type": "deepgram", "version": "v2", "model": "flux-kit-en"}}

_NOVA = record(
    {"type": one_of("deepgram"), "version": text},
    {"model": text, "language": text, "keyterms": list_of(text), "smart_format": flag},
)
_FLUX = record(
    {"type": one_of("deepgram"), "version": text, "model": one_of("flux-general-en", "flux-general-multi")},
    {
        "language_hints": list_of(text),
        "keyterms": list_of(text),
        "eot_threshold": number(0.5, 1.0),
        "eager_eot_threshold": number(0.3, 0.9),
        "eot_timeout_ms": number(500, 60_000, whole=True),
    },
)

_ENDPOINT = record({"url": text, "headers": table})
_MODEL = {"type": text, "model": text}
_REASONING = one_of("none", "minimal", "low", "medium", "high")
_LLM = variant(
    "type",
    {
        "open_ai": record(_MODEL, {"version": one_of("v1"), "temperature": number(0, 2), "reasoning_mode": _REASONING}),
        "anthropic": record(_MODEL, {"version": one_of("v1"), "temperature": number(0, 1)}),
        "google": record(_MODEL, {"version": text, "temperature": number(0, 2)}),
        "groq": record(_MODEL, {"version": one_of("v1"), "temperature": number(0, 2), "reasoning_mode": _REASONING}),
        "aws_bedrock": record(_MODEL, {"temperature": number(0, 1), "credentials": table}),
    },
)
_FUNCTION = record(
    {"name": text},
    {
        "description": text,
        "parameters": _parameters,
        "endpoint": record({"url": text}, {"method": text, "headers": table}),
        "defer_until_eot": flag,
        "initial_agent_filler": _filler,
        "agent_filler_max_count": _filler,
        "agent_filler_interval_ms": _filler,
    },
)
_THINK = record(
    {"provider": _LLM},
    {"endpoint": _ENDPOINT, "prompt": text, "context_length": _context_length, "functions": list_of(_FUNCTION)},
)

_VOICES = {
    "deepgram": record(
        {"type": text, "model": text},
        {"version": one_of("v1", "v2"), "speed": number(0, 10), "expressivity": number(-2, 2, whole=True)},
    ),
    "eleven_labs": record({"type": text, "model_id": text}, {"version": text, "language": text, "language_code": text}),
    "cartesia": record(
        {"type": text, "model_id": text, "voice": record({"mode": text, "id": text})},
        {"version": text, "language": text, "volume": number(0, 2)},
    ),
    "open_ai": record({"type": text, "model": text, "voice": text}, {"version": text}),
    "aws_polly": record(
        {"type": text, "voice": text, "language": text, "engine": text, "credentials": table}, {"language_code": text}
    ),
}


def _speak(value: Any, where: str) -> None:
    record({"provider": variant("type", _VOICES)}, {"endpoint": _ENDPOINT})(value, where)
    if value["provider"]["type"] in ("eleven_labs", "open_ai", "aws_polly") and "endpoint" not in value:
        raise _invalid(where, f"{value['provider']['type']} needs an endpoint")


_HISTORY_TEXT = record({"type": one_of("History"), "role": one_of("user", "assistant"), "content": text})
_HISTORY_CALLS = record(
    {
        "type": one_of("History"),
        "function_calls": list_of(
            record(
                {"id": text, "name": text, "client_side": flag, "arguments": text, "response": text},
                {"thought_signature": text},
            )
        ),
    }
)

_HERTZ = number(8000, 96_000, whole=True)
_INPUT_ENCODINGS = "linear16 linear32 flac alaw mulaw amr-nb amr-wb opus ogg-opus speex g729".split()
_OUTPUT_ENCODINGS = "linear16 mulaw alaw mp3 opus flac aac".split()
_AUDIO = record(
    {},
    {
        "input": record({"encoding": one_of(*_INPUT_ENCODINGS), "sample_rate": _HERTZ}),
        "output": record(
            {},
            {
                "encoding": one_of(*_OUTPUT_ENCODINGS),
                "sample_rate": _HERTZ,
                "bitrate": number(4000, 650_000, whole=True),
                "container": one_of("none", "wav", "ogg"),
            },
        ),
    },
)
# Without `language`, which is deprecated and was rejected by one server, and `think_live`, which is by invitation.
_AGENT = record(
    {},
    {
        "greeting": text,
        "context": record({}, {"messages": list_of(_history)}),
        "listen": check_listen,
        "think": one_or_list(_check_think),
        "speak": one_or_list(_speak),
    },
)
_SETTINGS = record(
    {"type": text, "audio": _AUDIO, "agent": _AGENT},
    {
        "tags": list_of(text),
        "experimental": flag,
        "mip_opt_out": flag,
        "flags": record({}, {"history": flag}),
    },
)

_TYPE = {"type": text}
_MESSAGES: dict[str, Check] = {
    "KeepAlive": record(_TYPE),
    "ForceEndTurn": record(_TYPE),
    "UpdatePrompt": record({**_TYPE, "prompt": text}),
    "UpdateThink": record({**_TYPE, "think": one_or_list(_check_think)}),
    "UpdateSpeak": record({**_TYPE, "speak": one_or_list(_speak)}),
    "UpdateListen": record({**_TYPE, "listen": record({"provider": _anything})}),
    "InjectUserMessage": record({**_TYPE, "content": text}),
    "InjectAgentMessage": record({**_TYPE, "message": text}, {"behavior": one_of("default", "queue", "interrupt")}),
    "FunctionCallResponse": record({**_TYPE, "name": text, "content": text}, {"id": text}),
    "__customToThinkProvider": record({**_TYPE, "content": _anything}),
}
