import asyncio
from pathlib import Path

from gateway.diagnostics.report import examine
from gateway.diagnostics.results import CheckState
from gateway.settings import Settings


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
