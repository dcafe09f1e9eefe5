"""
Firefox, driven over WebDriver BiDi, which it speaks by itself: Debian's has no driver that Playwright knows.

Only what a test of one page needs: go somewhere, run a script there, wait for what it says.
"""

import asyncio
import base64
import contextlib
import itertools
import os
import re
import shutil
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect

from tests.stage import until

FIREFOX = next(filter(None, map(shutil.which, ("firefox-esr", "firefox"))), None)
PULSEAUDIO = shutil.which("pulseaudio")
"""Firefox plays nothing on a machine without a sound device, so PulseAudio provides a null sink."""
READY = re.compile(r"WebDriver BiDi listening on (ws://\S+)")


class Firefox:
    """One window."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._window = ""

    async def open(self) -> None:
        await self._ask("session.new", {"capabilities": {}})
        tree = await self._ask("browsingContext.getTree", {})
        self._window = tree["contexts"][0]["context"]

    async def go(self, url: str) -> None:
        await self._ask("browsingContext.navigate", {"context": self._window, "url": url, "wait": "complete"})

    async def resize(self, width: int, height: int) -> None:
        viewport = {"width": width, "height": height}
        await self._ask("browsingContext.setViewport", {"context": self._window, "viewport": viewport})

    async def run(self, expression: str) -> Any:
        """What a script comes to, as a click of a person's would allow it."""
        answer = await self._ask(
            "script.evaluate",
            {
                "expression": expression,
                "target": {"context": self._window},
                "awaitPromise": True,
                "userActivation": True,
            },
        )
        assert answer["type"] == "success", answer
        return answer["result"].get("value")

    async def picture(self, path: Path) -> None:
        answer = await self._ask("browsingContext.captureScreenshot", {"context": self._window, "origin": "document"})
        await asyncio.to_thread(path.write_bytes, base64.b64decode(answer["data"]))

    async def _ask(self, method: str, params: Mapping[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send(orjson.dumps({"id": number, "method": method, "params": params}).decode())
        async for text in self._socket:
            message = orjson.loads(text)
            if message.get("id") == number:
                assert message["type"] == "success", message
                return dict(message["result"])
        raise ConnectionError("Firefox has gone")


@contextlib.asynccontextmanager
async def _running(*command: str, environ: Mapping[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        *command,
        env={**os.environ, **environ},
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.communicate()


@contextlib.asynccontextmanager
async def _loudspeaker(folder: Path) -> AsyncIterator[dict[str, str]]:
    """What a program's environment needs to play into nothing."""
    socket = folder / "pulse" / "native"
    socket.parent.mkdir()
    server = f"module-native-protocol-unix socket={socket} auth-anonymous=1"
    command = ("-n", "--exit-idle-time=-1", "--daemonize=no", "-L", "module-null-sink", "-L", server)
    assert PULSEAUDIO is not None
    async with _running(PULSEAUDIO, *command, environ={"PULSE_RUNTIME_PATH": str(socket.parent)}):
        await until(socket.exists)
        yield {"PULSE_SERVER": f"unix:{socket}"}


@contextlib.asynccontextmanager
async def running_firefox(folder: Path, preferences: Mapping[str, bool | int | str]) -> AsyncIterator[Firefox]:
    """A Firefox of our own, without a screen, with these preferences."""
    assert FIREFOX is not None
    profile = folder / "firefox"
    profile.mkdir()
    lines = [f'user_pref("{name}", {orjson.dumps(value).decode()});' for name, value in preferences.items()]
    (profile / "user.js").write_text("\n".join(lines))
    arguments = ("--headless", "--no-remote", "--profile", str(profile), "--remote-debugging-port", "0")
    async with (
        _loudspeaker(folder) as environ,
        _running(FIREFOX, *arguments, environ=environ) as process,
        connect(f"{await _address(process)}/session", max_size=None, proxy=None, compression=None) as socket,
    ):
        firefox = Firefox(socket)
        await firefox.open()
        yield firefox


async def _address(process: asyncio.subprocess.Process) -> str:
    """Where it says that it can be driven."""
    assert process.stderr is not None
    async for line in process.stderr:
        if match := READY.search(line.decode()):
            return match.group(1)
    raise ConnectionError("Firefox did not start")
