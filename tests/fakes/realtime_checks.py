"""What a Realtime server accepts, by the types of the official package, and by the documentation of xAI."""

from typing import Any

from openai.types.realtime import RealtimeClientEvent
from pydantic import BaseModel, TypeAdapter, ValidationError

_EVENT: TypeAdapter[Any] = TypeAdapter(RealtimeClientEvent)
_XAI_SESSION = {"instructions", "voice", "turn_detection", "reasoning", "resumption", "audio", "tools", "replace"}
_XAI_TURN_DETECTION = {"type", "threshold", "silence_duration_ms", "prefix_padding_ms", "idle_timeout_ms"}


class ClientMistake(Exception):
    """An event that the server rejects whole."""

    def __init__(self, code: str, message: str, param: str = "") -> None:
        super().__init__(f"{code} {param}: {message}")
        self.code, self.message, self.param = code, message, param


def check_openai(event: dict[str, Any]) -> None:
    """Raise ClientMistake for what OpenAI's types do not have."""
    session = event.get("session")
    if event["type"] == "session.update" and "type" not in (session or {}):
        raise ClientMistake("missing_required_parameter", "Missing required parameter.", "session.type")
    try:
        model = _EVENT.validate_python(event)
    except ValidationError as error:
        place = ".".join(map(str, error.errors()[0]["loc"]))
        raise ClientMistake("invalid_value", error.errors()[0]["msg"], place) from None
    if extra := list(extras(model)):
        raise ClientMistake("unknown_parameter", "Unknown parameter.", extra[0])
    for item in _items(event):
        for part in item.get("content", []):
            if item["role"] == "assistant" and "text" not in part:
                raise ClientMistake("missing_required_parameter", "Missing text.", "item.content[0].text")
        if len(item.get("id", "")) > 32 or len(item.get("call_id", "")) > 32:
            raise ClientMistake("invalid_value", "The id is too long.", "item.id")


def check_xai(event: dict[str, Any]) -> None:
    """Raise ClientMistake for what xAI's documentation does not have."""
    if event["type"] == "session.update":
        session = event["session"]
        if extra := sorted(set(session) - _XAI_SESSION):
            raise ClientMistake("unknown_parameter", "Unknown parameter.", f"session.{extra[0]}")
        detection = session.get("turn_detection", {})
        if set(detection) - _XAI_TURN_DETECTION or detection.get("type", "server_vad") not in ("server_vad", None):
            raise ClientMistake("invalid_value", "Unknown turn detection.", "session.turn_detection")
        transcription = session.get("audio", {}).get("input", {}).get("transcription", {})
        if set(transcription) - {"model", "language_hint", "keyterms"}:
            raise ClientMistake("unknown_parameter", "Unknown parameter.", "session.audio.input.transcription")
        return
    known = {"modalities", "instructions", "metadata"}
    if event["type"] == "response.create" and set(event.get("response", {})) - known:
        raise ClientMistake("unknown_parameter", "Unknown parameter.", "response")
    if any(item["type"] == "force_message" for item in _items(event)):
        content = event["item"].get("content", [{}])
        if event["item"].get("role") != "assistant" or content[0].get("type") != "output_text":
            raise ClientMistake("invalid_value", "A force_message is the assistant's.", "item")
        return
    check_openai(event)


def extras(model: Any, path: str = "") -> Any:
    """The paths of all fields that a model's type does not have."""
    if isinstance(model, BaseModel):
        yield from (f"{path}{name}" for name in model.model_extra or {})
        for name in type(model).model_fields:
            yield from extras(getattr(model, name), f"{path}{name}.")
    elif isinstance(model, list):
        for number, part in enumerate(model):
            yield from extras(part, f"{path}{number}.")


def _items(event: dict[str, Any]) -> list[dict[str, Any]]:
    return [event["item"]] if event["type"] == "conversation.item.create" else []
