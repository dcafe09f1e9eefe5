"""The local demo: real lines beside recognized turns. Its calls are in tests/cli/test_demo.py."""

from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.errors import EngineRefused
from gateway.simulate.gateway_under_test import serve_on_loopback
from gateway.simulate.local_demo import TranscribedTurn, _aligned, _error_of, run_local_demo

LINES = ("My name is Anna.", "Thank you, goodbye.")


def test_line_stands_at_its_first_turn():
    transcript = [
        ("AGENT", "Hello."),
        ("CALLER", "My name"),
        ("CALLER", "is Anna."),
        ("AGENT", "Hello Anna."),
        ("CALLER", "Thank you goodbye."),
    ]
    turns = _aligned(LINES, transcript)
    assert [turn.said for turn in turns] == ["", LINES[0], "", "", LINES[1]]
    assert _error_of(turns).errors == 0


def test_line_that_was_not_recognized_is_all_errors():
    turns = _aligned(LINES, [("CALLER", "My name is Anna.")])
    assert turns[-1] == TranscribedTurn("CALLER", "", LINES[1])
    assert (_error_of(turns).errors, _error_of(turns).words) == (3, 7)


async def test_engine_that_cannot_start_is_reported():
    async def health(request):
        return JSONResponse({"engine_state": "failed", "engine_problem": "no model files"})

    @asynccontextmanager
    async def start(settings):
        assert settings.voice_engine == "local"
        async with serve_on_loopback(Starlette(routes=[Route("/health", health)])) as url:
            yield url

    with pytest.raises(EngineRefused, match="no model files"):
        await run_local_demo(start, None, speed=1)
