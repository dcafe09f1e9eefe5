"""Whole calls through the proxy configurations of deploy/, with the real servers where they are installed."""

import asyncio
import contextlib
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.ports import free_port
from tests.servers import environ, installed
from tests.stage import SOUND, make_carrier, staged, until

DEPLOY = Path(__file__).parent.parent / "deploy"


def nginx(config: str, folder: Path, port: int, upstream: int) -> list[str]:
    config = re.sub(r"ssl_certificate.*", "", config.replace("listen 443 ssl", f"listen 127.0.0.1:{port}"))
    config = config.replace("listen 80;", f"listen 127.0.0.1:{free_port()};")
    config = config.replace("/var/log/nginx", str(folder)).replace(":8000", f":{upstream}")
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    main = f"daemon off; pid {folder}/pid; error_log {folder}/error; events {{}} http {{ {temporary} {config} }}"
    (folder / "nginx.conf").write_text(main)
    return ["nginx", "-e", f"{folder}/error", "-p", str(folder), "-c", f"{folder}/nginx.conf"]


def caddy(config: str, folder: Path, port: int, upstream: int) -> list[str]:
    config = config.replace("{\n\tservers", "{\n\tadmin off\n\tservers", 1).replace(
        "{$DOMAIN}", f"http://127.0.0.1:{port}"
    )
    config = config.replace("dynamic a gateway 8000", f"to 127.0.0.1:{upstream}")
    version = subprocess.run([installed("caddy"), "version"], capture_output=True, text=True).stdout
    if version.lstrip("v").startswith(("2.4", "2.5", "2.6")):  # Debian's is older than the image that compose runs
        config = config.replace("stream_close_delay 15m", "")
    (folder / "Caddyfile").write_text(config)
    return ["caddy", "run", "--config", f"{folder}/Caddyfile", "--adapter", "caddyfile"]


def haproxy(config: str, folder: Path, port: int, upstream: int) -> list[str]:
    config = re.sub(r"bind :443 ssl.*", f"bind 127.0.0.1:{port}", config).replace(":8000", f":{upstream}")
    (folder / "haproxy.cfg").write_text(config)
    return ["haproxy", "-db", "-f", f"{folder}/haproxy.cfg"]


def apache2(config: str, folder: Path, port: int, upstream: int) -> list[str]:
    modules = Path(installed("apache2")).parent.parent / "lib" / "apache2" / "modules"
    names = ("mpm_event", "authz_core", "headers", "proxy", "proxy_http", "reqtimeout")
    load = "\n".join(f"LoadModule {name}_module {modules}/mod_{name}.so" for name in names)
    config = re.sub(r"SSL.*", "", config.replace("*:443", f"127.0.0.1:{port}")).replace(":8000", f":{upstream}")
    config = config.replace("/var/log/apache2", str(folder))
    places = {"PidFile": "pid", "ErrorLog": "error", "DefaultRuntimeDir": ""}
    main = f"ServerRoot {folder}\nServerName x\nListen 127.0.0.1:{port}\n"
    main += "".join(f"{name} {folder}/{place}\n" for name, place in places.items())
    (folder / "apache.conf").write_text(f"{main}{load}\n{config}")
    return ["apache2", "-D", "FOREGROUND", "-f", f"{folder}/apache.conf"]


PROXIES = {nginx: "nginx.conf", caddy: "Caddyfile", haproxy: "haproxy.cfg", apache2: "apache.conf"}


@contextlib.asynccontextmanager
async def running(proxy, folder: Path, gateway_url: str):
    """The server with the project's configuration, without TLS; yields its address."""
    if not installed(proxy.__name__):
        pytest.skip(f"{proxy.__name__} is not installed")
    port = free_port()
    config, upstream = (DEPLOY / PROXIES[proxy]).read_text(encoding="utf-8"), int(gateway_url.rpartition(":")[2])
    command = proxy(config, folder, port, upstream)
    environment = {**environ(), "HOME": str(folder)}
    with (folder / "output").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            installed(command[0]), *command[1:], stdout=output, stderr=output, env=environment
        )
    try:
        for _ in range(200):
            assert process.returncode is None, (folder / "output").read_text()
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                break
            await asyncio.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def check_answers(http: httpx.AsyncClient) -> None:
    """HSTS; redirects to the same scheme and host, whatever the client claims; limits of the header."""
    claims = {"X-Forwarded-Proto": "ftp", "X-Forwarded-Host": "evil.example.com"}
    for path, status in {"/login/?token=x": 307, "/calls": 303}.items():
        response = await http.get(path, headers=claims)
        assert response.headers["Strict-Transport-Security"] == "max-age=31536000"
        assert (response.status_code, response.headers["Location"].partition("?")[0]) == (status, "/login")
    assert (await http.get("/health", headers={"X-Long": "x" * 40_000})).status_code in (400, 431)


async def status_of_large_body(port: int) -> bytes:
    """
    Without a token the gateway answers before it has read the body, and closes the connection.

    A proxy passes that on, or has a limit of its own; Caddy answers 502 if it was still sending.
    """
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /v1/query HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 5000000\r\n\r\n"
    writer.write(head.encode() + bytes(5_000_000))
    try:
        return (await reader.readline()).split()[1]
    finally:
        writer.transport.abort()  # of a refused body the rest is never read


@pytest.mark.parametrize("carrier_name", ["twilio", "telnyx"])
@pytest.mark.parametrize("proxy", PROXIES, ids=lambda proxy: proxy.__name__)
async def test_whole_call_through_proxy(proxy, carrier_name, tmp_path):
    """Requests first, so that the proxy has connections to reuse for the media socket."""
    carrier = make_carrier(carrier_name)
    async with staged(tmp_path, carrier) as stage, running(proxy, tmp_path, stage.url) as url:
        carrier.gateway_url = url
        async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
            for _ in range(3):
                assert (await http.get("/health")).status_code == 200
            assert (await http.get("/metrics")).status_code == 404
            await check_answers(http)
            if proxy is not apache2:  # its LimitRequestBody is not for requests that it forwards
                assert await status_of_large_body(httpx.URL(url).port) in (b"401", b"413", b"502")
            call, conversation = await stage.dial()
            await call.speak(SOUND * 5)
            await until(lambda: SOUND * 5 in bytes(conversation.heard))
            await conversation.user_says("Remember the blue boat.")
            await conversation.agent_says("A blue boat.")
            await call.hang_up()
            await stage.document()
