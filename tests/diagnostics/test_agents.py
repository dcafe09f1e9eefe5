from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.diagnostics.conftest import NO_MODELS, Doctor
from tests.fakes.webhook_receiver import SECRET, WebhookReceiver


async def test_functions_and_knowledge_are_listed(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "tools.py").write_text('def opening_hours() -> str:\n    """When the shop is open."""\n    return ""\n')
    (tmp_path / "facts").mkdir()
    (tmp_path / "facts" / "hours.md").write_text("# Hours\n\nOpen from 9 to 5.\n")
    (tmp_path / "gateway.toml").write_text('[agents.maya]\nfunctions = "tools.py"\nknowledge = "facts"\n')
    _, found = await doctor(**NO_MODELS)
    assert found["functions of maya"] == ("ok", "1 function: opening_hours")
    assert found["knowledge of maya"] == ("ok", "1 file, 1 passage; 1 to be indexed when the gateway runs")
    assert found["agent maya"][0] == "ok"
    (tmp_path / "facts" / "plan.docx").write_bytes(b"PK")
    _, found = await doctor(**NO_MODELS)
    state, words = found["knowledge of maya"]
    assert state == "warning"
    assert "1 file skipped (plan.docx: not a text, Markdown, HTML or PDF file)" in words


async def test_empty_prompt_and_missing_memory_are_named(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text('[agents.maya]\nprompt = "p.md"\n')
    (tmp_path / "p.md").write_text("")
    _, found = await doctor(**NO_MODELS)
    assert found["agent maya"][0] == "problem"
    (tmp_path / "p.md").write_text("You are Maya. It is {{now}}, and you have no memory.")
    _, found = await doctor(**NO_MODELS)
    assert found["agent maya"][0] == "off" and "without {{memory}}" in found["agent maya"][1]


async def test_disabled_tools_are_named(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "gateway.toml").write_text('[agents.maya]\ndisabled_tools = ["search_memory", "end_call"]\n')
    _, found = await doctor(**NO_MODELS)
    assert found["agent maya"][1].endswith("without the tools end_call, search_memory")


async def test_webhook_is_reached_and_gets_no_message(doctor: Doctor) -> None:
    async with WebhookReceiver().running() as receiver:
        _, found = await doctor(WEBHOOK_URL=receiver.url, WEBHOOK_SECRET=SECRET, **NO_MODELS)
        assert found["webhook of maya"][0] == "ok" and receiver.attempts == []
    _, found = await doctor(WEBHOOK_URL="http://127.0.0.1:1/", WEBHOOK_SECRET=SECRET, **NO_MODELS)
    assert found["webhook of maya"][0] == "problem"


@pytest.mark.parametrize(
    "environ, table, found",
    [
        ({}, "", None),
        ({"RECORD_DIR": "calls"}, "", ("warning", "not encrypted; not announced by maya ")),
        (
            {"RECORD_DIR": "calls"},
            'consent = { announce = "Recorded." }',
            ("warning", "not encrypted make a RECORD_KEY with: gateway recordings key;"),
        ),
        (
            {"RECORD_DIR": "calls", "RECORD_KEY": Fernet.generate_key().decode()},
            "consent = { require = true }",
            ("ok", "encrypted and announced"),
        ),
        ({}, "consent = { require = true }", ("warning", "nothing is recorded, so maya does not announce it set ")),
        ({}, "consent = { require = true, always = true }", None),
    ],
)
async def test_recordings_are_looked_at(
    doctor: Doctor, tmp_path: Path, environ: dict[str, str], table: str, found: tuple[str, str] | None
) -> None:
    (tmp_path / "gateway.toml").write_text(f"[agents.maya]\n{table}\n")
    _, all_found = await doctor(**NO_MODELS, **environ)
    state, words = all_found.get("recordings", ("", ""))
    assert (state, words[: len(found[1])]) == found if found else not state
