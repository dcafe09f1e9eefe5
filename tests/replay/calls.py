"""Recorded calls, and changed copies of them."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.app import Timeouts
from gateway.replay.compare import Difference
from gateway.replay.harness import replay
from gateway.replay.recording import Recording, read
from tests.stage import patient

RECORDINGS = Path(__file__).parent.parent / "recordings"
SHIPPED = Path(__file__).parent.parent.parent / "gateway" / "replay" / "calls"
ALL = sorted([*RECORDINGS.glob("*.jsonl"), *SHIPPED.glob("*.jsonl")])

Change = Callable[[dict[str, Any]], dict[str, Any] | None]


async def replayed(recording: Recording, *, timeouts: Timeouts = Timeouts(), **options: Any) -> list[Difference]:
    """The differences. A replay has an event loop of its own. `timeouts`: those of the stage that recorded the call."""
    return await asyncio.to_thread(replay, recording, timeouts=patient(timeouts), **options)


def recordings(folder: Path) -> list[Recording]:
    """The recordings in a folder, oldest first."""
    return sorted(map(read, folder.glob("*.jsonl")), key=lambda recording: recording.header.started_at)


async def replay_all(folder: Path, *, count: int = 1, timeouts: Timeouts = Timeouts()) -> list[Recording]:
    """Replay each recording in a folder, and check that there is no difference."""
    found = recordings(folder)
    assert len(found) == count
    for recording in found:
        assert recording.ended is not None and recording.summary is not None
        differences = await replayed(recording, timeouts=timeouts)
        assert not differences, "\n".join(map(str, differences))
    return found


def changed(name: str, folder: Path, change: Change) -> Path:
    """A copy of a recording with each line passed through `change`; None leaves it out."""
    lines = [json.loads(line) for line in (RECORDINGS / f"{name}.jsonl").read_text().splitlines()]
    kept = [line for line in map(change, lines) if line is not None]
    path = folder / f"{name}-changed.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    return path


def changed_recording(name: str, folder: Path, change: Change) -> Recording:
    return read(changed(name, folder, change))


def frame_of(line: dict[str, Any]) -> dict[str, Any]:
    return line.get("frame", {})


def without_clears(line: dict[str, Any]) -> dict[str, Any] | None:
    return None if frame_of(line).get("event") == "clear" else line


def with_other_words(line: dict[str, Any]) -> dict[str, Any]:
    """The agent says eighteen dollars, where the recorded session has eighty."""
    if "from" in line and frame_of(line).get("type") == "ConversationText":
        line["frame"]["content"] = line["frame"]["content"].replace("eighty", "eighteen")
    return line


def with_other_prompt(line: dict[str, Any]) -> dict[str, Any]:
    if line.get("note") == "call":
        line["content"]["agent"]["prompt"] = "You are another agent.\n{{memory}}"
    return line
