"""Whole calls in which it matters who speaks when: silence, interruptions."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.stage import Stage, make_carrier, staged, until_it

SILENCE = 'silence = { ask_after = 0.5, ask = "Hello? Anyone?", hang_up_after = 1.5 }'


@asynccontextmanager
async def stage_with(folder: Path, carrier_name: str, *lines: str) -> AsyncIterator[Stage]:
    """A gateway whose agent has these lines in gateway.toml."""
    (folder / "gateway.toml").write_text("\n".join(["[agents.maya]", *lines]))
    async with staged(folder, make_carrier(carrier_name)) as stage:
        yield stage


async def test_silent_caller_is_asked_and_hung_up_on(tmp_path: Path, carrier_name: str) -> None:
    async with stage_with(tmp_path, carrier_name, SILENCE, 'language = "fr"') as stage:
        call, conversation = await stage.dial()
        assert (await conversation.message("InjectAgentMessage"))["message"] == "Hello? Anyone?"
        await call.over()
        assert call.ended_by != "caller"
        assert conversation.messages[-1]["message"].startswith("Je n'entends plus rien")

        async def ended() -> list[str]:
            sessions = (await stage.http.get("/v1/sessions")).json()
            return [session["outcome"] for session in sessions if session["outcome"]]

        assert await until_it(ended) == ["caller silent"]
        assert "Hello? Anyone? Je n'entends plus rien" in await stage.archive()
