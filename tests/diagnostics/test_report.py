import asyncio
from pathlib import Path
from typing import Any

from gateway.diagnostics.report import examine
from gateway.diagnostics.results import CheckState
from gateway.settings import Settings
from gateway.simulate.gateway_under_test import serve_on_loopback
from tests.diagnostics.conftest import NO_MODELS, Doctor


async def test_group_without_a_result_is_reported(tmp_path: Path) -> None:
    """A server that accepts connections and never answers holds up nothing but its own group."""
    gone = asyncio.Event()

    async def never_answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gone.wait()
        writer.close()

    server = await asyncio.start_server(never_answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        settings = Settings(public_url=url, port=0, data_dir=tmp_path, voice_session_archive_dir=tmp_path)
        progress: list[list[str]] = []
        groups = await examine(
            settings, None, ["a mistake"], on_progress=lambda running: progress.append(list(running)), deadline=1.0
        )
        gone.set()
    names = [group.name for group in groups]
    assert names == ["Settings", "This machine", "Telephony", "Public address"]
    [late] = groups[-1].results
    assert (late.state, late.found) == (CheckState.PROBLEM, "no result within 1 s")
    assert progress[-1] == [] and ["Public address"] in progress


async def test_check_that_fails_is_one_problem(doctor: Doctor) -> None:
    """What a server answers may be anything."""

    async def odd(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"incoming_phone_numbers": [1]}'})

    async with serve_on_loopback(odd, lifespan="off") as url:
        twilio = {"TWILIO_ACCOUNT_SID": "AC1", "TWILIO_AUTH_TOKEN": "t", "TWILIO_API_URL": url}
        code, found = await doctor(PUBLIC_URL="https://127.0.0.1:1", **twilio, **NO_MODELS)
    todo = "check the addresses in the settings; something else may answer there"
    assert (code, found["telephony"]) == (1, ("problem", f"could not be checked (AttributeError) {todo}"))
    assert "DATA_DIR" in found
