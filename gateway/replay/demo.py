"""The recorded demo: two recorded calls of one caller, played into one real gateway."""

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Final, Protocol

from gateway.replay.harness import ReplayHarness, replay_harness
from gateway.replay.recording import CallHeader, RecordedFrame, Recording, read
from gateway.simulate.frames import JsonFrame
from gateway.simulate.gateway_under_test import StartGateway

_CALLS: Final = ("first.jsonl", "second.jsonl")
_PLACEHOLDER: Final = re.compile(r"\\\{\\\{(\w+)\\\}\\\}")
_CONTEXT_HEADING: Final = "### Context for Next Call\n"


class Narrator(Protocol):
    """Presents the demo. Called in the order of events."""

    def gateway_runs(self, url: str) -> None: ...
    def phone_rings(self, number: int, header: CallHeader) -> None: ...
    def agent_prompted(self, memory: str) -> None: ...
    def said(self, speaker: str, text: str) -> None: ...
    def caller_hung_up(self, seconds: float) -> None: ...
    def document_kept(self, document: str) -> None: ...


@dataclass(frozen=True)
class DemoResult:
    """What was stored of the first call, and the memory in the second call's prompt."""

    context: str
    prompted: str

    @property
    def remembered(self) -> bool:
        return bool(self.context) and self.context in self.prompted


async def run_demo(start: StartGateway, narrator: Narrator, *, speed: float) -> DemoResult:
    """Play both calls. The store starts empty: the second call's memory comes from the first."""
    first, second = (read(path) for path in _paths())
    async with replay_harness(first, start) as harness:
        narrator.gateway_runs(harness.api.address.url)
        await _play(1, first, harness, narrator, speed)
        document = (await harness.stored_call(first)).document
        narrator.document_kept(document)
        prompted = await _play(2, second, harness, narrator, speed)
    return DemoResult(document.partition(_CONTEXT_HEADING)[2].strip(), prompted)


def _paths() -> list[Path]:
    folder = resources.files("gateway.replay").joinpath("calls")
    return [Path(str(folder.joinpath(name))) for name in _CALLS]


async def _play(number: int, recording: Recording, harness: ReplayHarness, narrator: Narrator, speed: float) -> str:
    """Play one call. Returns the memory in the agent's prompt."""
    prompted = ""

    def observe(frame: RecordedFrame) -> None:
        nonlocal prompted
        fields = frame.content.fields if isinstance(frame.content, JsonFrame) else {}
        if fields.get("type") == "Settings":
            prompted = _memory_part(harness, recording.header)
            narrator.agent_prompted(prompted)
        elif fields.get("type") == "ConversationText":
            narrator.said(str(fields["role"]), str(fields["content"]))

    narrator.phone_rings(number, recording.header)
    await harness.play(recording, speed=speed, observer=observe)
    narrator.caller_hung_up(recording.seconds)
    return prompted


def _memory_part(harness: ReplayHarness, header: CallHeader) -> str:
    """What replaced {{memory}} in the prompt that the engine received."""
    messages = (received.content for received in harness.engine.sink.frames)
    settings = next(message.fields for message in messages if isinstance(message, JsonFrame))
    prompt = settings["agent"]["think"]["prompt"]
    pattern = _PLACEHOLDER.sub(_group, re.escape(str(header.agent["prompt"])))
    match = re.fullmatch(pattern, prompt, re.DOTALL)
    return match["memory"] if match else ""


def _group(placeholder: re.Match[str]) -> str:
    return "(?P<memory>.*)" if placeholder[1] == "memory" else ".*?"
