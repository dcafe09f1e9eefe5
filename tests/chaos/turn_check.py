"""Compares the turns that the engine sent with the archive: lost, duplicated, or out of order. No I/O."""

import json
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

RECEIVED_BEFORE = 0.1
"""Seconds before the kill after which a turn may be lost."""

_NOT_WORDS = re.compile(r"^(CALLER|AGENT):|\[[^\]]*\]|[^\w]+", re.MULTILINE)


@dataclass(frozen=True)
class Said:
    """A final text that the engine sent. `cut`: interrupted by the caller, perhaps before any of it was played."""

    at: float
    speaker: str
    text: str
    cut: bool = False


@dataclass(frozen=True)
class Kept:
    """The result of the comparison."""

    due: int
    kept: int
    lost: tuple[str, ...] = ()
    surplus: str = ""
    """Text in the archive that is duplicated, out of order, or was never sent."""


def said_in(log: Iterable[Any]) -> list[Said]:
    """The turns of one conversation from the engine's log, without cancelled answers."""
    said: list[Said] = []
    open_from, cancelled = 0, False
    for entry in log:
        message = _message(entry)
        match message.get("type"), message.get("role"):
            case "UserStartedSpeaking", _:
                # The first sentence was played to its end; later ones may have been cut.
                said[open_from + 1 :] = [replace(one, cut=True) for one in said[open_from + 1 :]]
                open_from, cancelled = len(said), True
            case "ConversationText", "user":
                said.append(Said(entry.at, "CALLER", message["content"]))
                open_from, cancelled = len(said), False
            case "ConversationText", "assistant" if not cancelled:
                said.append(Said(entry.at, "AGENT", message["content"]))
            case "AgentAudioDone", _:
                open_from = len(said)
            case (("EndOfTurn" | "FunctionCallRequest"), _):
                cancelled = False
    return said


def compare(said: Iterable[Said], archive: str, *, killed_at: float, restarted_at: float) -> Kept:
    """Expect every turn once and in order. Turns shortly before the kill may be missing."""

    def is_due(one: Said) -> bool:
        return not one.cut and (one.at <= killed_at - RECEIVED_BEFORE or one.at >= restarted_at)

    said = list(said)
    due = Counter(one.text for one in said if is_due(one))
    position, lost, rest = 0, [], []
    for one in said:
        must = is_due(one)
        due[one.text] -= must
        # A greeting may have been sent twice, the first time too late to be stored.
        spared = not must and archive.count(one.text, position) <= due[one.text]
        found = -1 if spared else archive.find(one.text, position)
        if found >= 0:
            rest.append(archive[position:found])
            position = found + len(one.text)
        elif must:
            lost.append(f"{one.speaker}: {one.text}")
    rest.append(archive[position:])
    spoken = sum(map(is_due, said))
    return Kept(spoken, spoken - len(lost), tuple(lost), _NOT_WORDS.sub("", " ".join(rest)))


def _message(entry: Any) -> dict[str, Any]:
    if entry.direction != "out" or not isinstance(entry.frame, str):
        return {}
    message: dict[str, Any] = json.loads(entry.frame)
    return message
