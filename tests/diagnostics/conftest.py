import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gateway.cli.main import main
from tests.fakes.tool_servers import TOKEN

NO_MODELS = {"DEEPGRAM_API_KEY": "dg-test-key", "DEEPGRAM_AGENT_URL": "ws://127.0.0.1:1/"}
"""For tests of other checks: the models of the local engine take a second to load."""
SECRETS = ["dg-test-key", "sk-test-key", "twilio-auth-token", "telnyx-api-key", "a-remem-key", TOKEN]

Found = dict[str, tuple[str, str]]
Doctor = Callable[..., Awaitable[tuple[int, Found]]]


@pytest.fixture
def doctor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Doctor:
    """`gateway doctor` with these settings."""

    async def run(**environ: str) -> tuple[int, Found]:
        """The exit code, and the state and text of each check."""
        monkeypatch.chdir(tmp_path)
        own = {"DATA_DIR": str(tmp_path / "data"), "VOICE_SESSION_ARCHIVE_DIR": str(tmp_path / "archive"), "PORT": "0"}
        for name, value in {**own, **environ}.items():
            monkeypatch.setenv(name, value)
        code = await asyncio.to_thread(main, ["doctor", "--json"])
        printed = capsys.readouterr()
        assert printed.err == ""
        assert not [secret for secret in SECRETS if secret in printed.out]
        found: Found = {}
        for row in json.loads(printed.out):
            found.setdefault(row["check"], (row["state"], f"{row['found']} {row['todo']}".strip()))
        return code, found

    return run
