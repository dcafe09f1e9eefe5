from typing import Any

from gateway.diagnostics.http_probe import encrypted
from gateway.diagnostics.results import CheckState
from gateway.simulate.gateway_under_test import serve_on_loopback
from tests.diagnostics.conftest import NO_MODELS, Doctor


async def test_clock_is_compared(doctor: Doctor) -> None:
    async def long_ago(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"date", b"Fri, 06 Feb 2015 23:15:00 GMT")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"{}"})

    async with serve_on_loopback(long_ago, date_header=False, lifespan="off") as url:
        _, found = await doctor(REMEM_API_URL=url, **NO_MODELS)
    assert found["clock"][0] == "problem"
    assert "NTP" in found["clock"][1]


def test_unencrypted_tools_beyond_this_machine_are_named() -> None:
    warned = encrypted("tools", "http://192.168.1.9/mcp", "answers")
    assert (warned.state, warned.found) == (CheckState.WARNING, "answers; not encrypted")
    for url in ("https://192.168.1.9/mcp", "http://127.0.0.1:5678/", "http://localhost/"):
        assert encrypted("tools", url, "answers").state is CheckState.OK


async def test_another_service_is_no_gateway(doctor: Doctor) -> None:
    """A server that is not the wanted service is recognised."""

    async def website(scope: Any, receive: Any, send: Any) -> None:
        status = 200 if scope["path"] == "/health" else 404
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b"<h1>Welcome</h1>"})

    async with serve_on_loopback(website, lifespan="off") as url:
        _, found = await doctor(PUBLIC_URL=url, REMEM_API_URL=url, XAI_API_KEY="k", XAI_API_URL=url, **NO_MODELS)
    host = url.removeprefix("http://")
    assert found["remem"] == ("problem", f"{host} answers 404: not this service check REMEM_API_URL")
    assert found["xai"][0] == "problem"


async def test_page_in_place_of_a_service_is_named(doctor: Doctor) -> None:
    """A login page or a parked domain answers every path with 200."""

    async def website(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": b"<h1>Welcome</h1>"})

    async with serve_on_loopback(website, lifespan="off") as url:
        code, found = await doctor(REMEM_API_URL=url, XAI_API_KEY="k", XAI_API_URL=url, **NO_MODELS)
    host = url.removeprefix("http://")
    assert code == 1
    for check, address in {"remem": "REMEM_API_URL", "xai": "XAI_API_URL"}.items():
        text = f"{host} answers without a JSON object: not this service check {address}"
        assert found[check] == ("problem", text)
