"""Recordings of whole calls: who is recorded, who agrees to it, and who can read it."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from cryptography.fernet import Fernet

from gateway.calls.recording_files import RecordingCipher
from gateway.cli.replay import replay
from gateway.replay.recording import read
from gateway.settings import Secret
from tests.stage import CALLER, Stage, make_carrier, staged

BLACKLISTED = "+12025550199"
SETTINGS = f"""
[agents.maya.memory.repeat_caller]
identifier_source = "state:customer"
identifier_blacklist = ["{BLACKLISTED}", "blocked"]
"""


def files(folder: Path) -> list[Path]:
    return sorted((folder / "recordings").iterdir())


@contextlib.asynccontextmanager
async def recording_stage(
    folder: Path, table: str = "", *, carrier: str = "twilio", **options: Any
) -> AsyncIterator[Stage]:
    (folder / "gateway.toml").write_text(table)
    async with staged(folder, make_carrier(carrier), RECORD_DIR=str(folder / "recordings"), **options) as stage:
        yield stage


async def one_call(stage: Stage, caller: str = CALLER, *, said: str = "I would like two pizzas.") -> None:
    call, conversation = await stage.dial(caller)
    await stage.played(call, conversation)
    await conversation.user_says(said)
    await stage.answer(call, conversation, "All right.")
    await call.hang_up()
    await stage.idle()


# Who is recorded


async def test_withheld_and_blacklisted_callers_are_not_recorded(tmp_path: Path, carrier_name: str) -> None:
    async with recording_stage(tmp_path, SETTINGS, carrier=carrier_name) as stage:
        for caller in ("anonymous", BLACKLISTED):
            call, conversation = await stage.dial(caller)
            await stage.played(call, conversation)
            assert files(tmp_path) == []  # not for a moment
            await call.hang_up()
            await stage.idle()
        assert files(tmp_path) == []
        await one_call(stage)
    assert len(files(tmp_path)) == 1


async def test_nothing_is_recorded_without_sessions(tmp_path: Path) -> None:
    async with recording_stage(tmp_path, VOICE_SESSION_ENABLED="false") as stage:
        await one_call(stage)
    assert files(tmp_path) == []


# Encryption


async def test_encrypted_call_is_played_and_replayed(tmp_path: Path) -> None:
    old, new = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    async with recording_stage(tmp_path, RECORD_KEY=f"{new},{old}") as stage:
        await one_call(stage)
        [path] = files(tmp_path)
    stored = path.read_bytes()
    assert b"pizzas" not in stored and CALLER.encode() not in stored
    recording = read(path, RecordingCipher(Secret(new)))
    assert recording.header.caller == CALLER and recording.ended is not None
    assert [str(difference) for difference in await replay(recording)] == []
