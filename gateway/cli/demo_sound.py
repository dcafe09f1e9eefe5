"""The sound of `gateway demo`: both calls in one WAV file, which never replaces a file of another program unasked."""

import contextlib
import itertools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gateway.audio import BYTES_PER_SECOND, SILENCE_BYTE
from gateway.errors import SettingsError
from gateway.invocation import typed_path
from gateway.simulate.call_audio import check_place
from gateway.text.figures import duration
from gateway.web.dashboard.recordings import StereoRecording

_BETWEEN_CALLS: Final = bytes([SILENCE_BYTE]) * BYTES_PER_SECOND
_FORMAT_END: Final = 36
"""Bytes before the chunk with the samples."""
_SOFTWARE: Final = b"voice-gateway demo\0\0"
_MARK: Final = (
    b"LIST"
    + (12 + len(_SOFTWARE)).to_bytes(4, "little")
    + b"INFOISFT"
    + len(_SOFTWARE).to_bytes(4, "little")
    + _SOFTWARE
)
"""Names the program in the file, so that the next demo replaces its own file and no other."""


def sound_path(chosen: Path | None) -> Path:
    """The chosen file, or one named demo.wav that is new or an earlier demo's. Raises SettingsError."""
    if chosen is not None:
        if chosen.suffix.lower() not in ("", ".wav"):
            raise SettingsError(f"--wav is {chosen}; the sound is saved as WAV, so end the name in .wav")
        check_place(chosen)
        return chosen
    folder = typed_path("")
    if not os.access(folder, os.W_OK | os.X_OK):
        with contextlib.suppress(OSError):  # else saving says why
            folder = Path(tempfile.mkdtemp(prefix="gateway-demo-"))
    names = itertools.chain(["demo.wav"], (f"demo-{number}.wav" for number in itertools.count(2)))
    return next(path for name in names if _is_free(path := folder / name))


def _is_free(path: Path) -> bool:
    if not os.path.lexists(path):
        return True
    try:
        with path.open("r+b") as file:
            return file.read(_FORMAT_END + len(_MARK)).endswith(_MARK)
    except OSError:
        return False


def save_sound(calls: Sequence[StereoRecording], path: Path) -> str:
    """Write the calls one after the other as a WAV file. Returns a sentence about it."""
    both = StereoRecording(
        _BETWEEN_CALLS.join(call.caller for call in calls), _BETWEEN_CALLS.join(call.agent for call in calls)
    )
    content = both.wav(0, both.wav_bytes)
    riff_bytes = (len(content) + len(_MARK) - 8).to_bytes(4, "little")
    try:
        with path.open("wb") as file:
            file.writelines((b"RIFF", riff_bytes, content[8:_FORMAT_END], _MARK, content[_FORMAT_END:]))
    except OSError as error:
        return f"The sound could not be saved as {path}: {(error.strerror or str(error)).lower()}."
    return f"Sound of both calls: {path} ({duration(both.seconds)}, caller left, agent right)."
