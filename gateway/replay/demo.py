"""The demonstration: two recorded calls of one caller into one real gateway, told as they happen."""

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, Protocol

from gateway.replay.harness import Stage, StartGateway, own_stage
from gateway.replay.recording import CallHeader, RecordedMessage, RecordedStep, Recording, read

_CALLS: Final = ("first.jsonl", "second.jsonl")
_PLACEHOLDER: Final = re.compile(r"\\\{\\\{(\w+)\\\}\\\}")
_CONTEXT_HEADING: Final = "### Context for Next Call\n"


class Narrator(Protocol):
    """Tells a person what happens."""

    def gateway_runs(self, url: str) -> None: ...
    def phone_rings(self, number: int, header: CallHeader) -> None: ...
    def agent_told(self, memory: str) -> None: ...
    def said(self, speaker: str, text: str) -> None: ...
    def caller_hung_up(self, seconds: float) -> None: ...
    def document_kept(self, document: str) -> None: ...


@dataclass(frozen=True)
class DemoResult:
    """What the demonstration came to: what was kept of the first call, and what the agent was told in the second."""

    context: str
    told: str

    @property
    def remembered(self) -> bool:
        return bool(self.context) and self.context in self.told


async def run_demo(start: StartGateway, narrator: Narrator, *, speed: float) -> DemoResult:
    """Play both calls. Nothing is put into the store: what the second call knows, the first one left there."""
    first, second = (read(path) for path in _paths())
    async with own_stage(first, start) as stage:
        narrator.gateway_runs(stage.gateway.url)
        await _call(1, first, stage, narrator, speed)
        document = (await stage.remembered(first)).document
        narrator.document_kept(document)
        told = await _call(2, second, stage, narrator, speed)
    return DemoResult(document.partition(_CONTEXT_HEADING)[2].strip(), told)


def _paths() -> list[Path]:
    folder = resources.files("gateway.replay").joinpath("calls")
    return [Path(str(folder.joinpath(name))) for name in _CALLS]


async def _call(number: int, recording: Recording, stage: Stage, narrator: Narrator, speed: float) -> str:
    """Play one call; what the agent was told of earlier ones."""
    told = ""

    def watch(step: RecordedStep) -> None:
        nonlocal told
        fields = step.content.fields if isinstance(step.content, RecordedMessage) else {}
        if fields.get("type") == "Settings":
            told = _memory_part(stage, recording.header)
            narrator.agent_told(told)
        elif fields.get("type") == "ConversationText":
            narrator.said(str(fields["role"]), str(fields["content"]))

    narrator.phone_rings(number, recording.header)
    await stage.play(recording, speed=speed, watch=watch)
    narrator.caller_hung_up(recording.seconds)
    return told


def _memory_part(stage: Stage, header: CallHeader) -> str:
    """What stands in place of {{memory}} in the prompt that the engine got."""
    messages = (arrival.content for arrival in stage.engine.inbox.arrivals)
    settings = next(message.fields for message in messages if isinstance(message, RecordedMessage))
    prompt = settings["agent"]["think"]["prompt"]
    pattern = _PLACEHOLDER.sub(_group, re.escape(str(header.agent["prompt"])))
    match = re.fullmatch(pattern, prompt, re.DOTALL)
    return match["memory"] if match else ""


def _group(placeholder: re.Match[str]) -> str:
    return "(?P<memory>.*)" if placeholder[1] == "memory" else ".*?"
