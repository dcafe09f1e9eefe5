"""The address and the HTTP API of the gateway under test, against a small application."""

import httpx
import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from gateway.errors import EngineRefused, SettingsError, StoreUnavailable
from gateway.settings import Secret
from gateway.simulate.gateway_under_test import GatewayAddress, GatewayApi, serve_on_loopback


@pytest.mark.parametrize(
    ("url", "public_url", "stream_url", "reached"),
    [
        ("http://127.0.0.1:8000", "", "ws://127.0.0.1:8000/twilio/media", "ws://127.0.0.1:8000/twilio/media"),
        ("http://127.0.0.1:8000/", "https://a.example", "wss://a.example/m?t=1", "ws://127.0.0.1:8000/m?t=1"),
        ("https://b.example/x", "https://a.example/behind", "wss://a.example/behind/m", "wss://b.example/x/m"),
    ],
)
def test_media_url_is_rewritten(url, public_url, stream_url, reached):
    assert GatewayAddress(url, public_url).media(stream_url) == reached


def test_signatures_cover_the_public_url():
    address = GatewayAddress("http://127.0.0.1:8000", "https://a.example/")
    assert (address.public("/x"), address.local("/x")) == ("https://a.example/x", "http://127.0.0.1:8000/x")


class SmallGateway:
    """Has one document; is idle from the third health check on."""

    def __init__(self):
        self.checks = 0
        self.engine_problem = ""

    async def health(self, request):
        self.checks += 1
        state = {"calls": 0 if self.checks > 1 else 1, "endings": 0 if self.checks > 2 else 1}
        engine = "loading" if self.checks < 3 else "failed" if self.engine_problem else "ready"
        return JSONResponse({**state, "engine_state": engine, "engine_problem": self.engine_problem})

    async def query(self, request):
        query = await request.json()
        return JSONResponse({"results": [{"id": "7", "tags": query["tags"], "key": request.headers["x-api-key"]}]})

    async def document(self, request):
        return JSONResponse({"content": f"document {request.path_params['id']}"})

    def app(self):
        return Starlette(
            routes=[
                Route("/health", self.health),
                Route("/v1/query", self.query, methods=["POST"]),
                Route("/v1/documents/{id}", self.document),
            ]
        )


@pytest.fixture
async def gateway():
    return SmallGateway()


@pytest.fixture
async def api(gateway):
    async with serve_on_loopback(gateway.app()) as url, httpx.AsyncClient(trust_env=False) as http:
        yield GatewayApi(GatewayAddress(url), http, Secret("token"))


async def test_documents_are_read_with_the_admin_token(api):
    [found] = await api.call_documents("caller:1")
    assert (found["tags"], found["key"]) == (["voice-session", "caller:1"], "token")
    assert await api.document_text("7") == "document 7"


async def test_idle_is_waited_for(api, gateway):
    await api.wait_idle(5)
    assert gateway.checks == 3


async def test_engine_is_waited_for(api, gateway):
    await api.wait_ready()
    assert gateway.checks == 3


async def test_engine_that_cannot_start_is_reported(api, gateway):
    gateway.engine_problem = "no model files"
    with pytest.raises(EngineRefused, match="no model files"):
        await api.wait_ready()


async def test_error_status_is_raised(api):
    with pytest.raises(StoreUnavailable, match="the gateway answered /nowhere with status 404"):
        await api.request("GET", "/nowhere")


async def test_server_that_does_not_start_is_reported():
    async def fails(scope, receive, send):
        raise RuntimeError("no start")

    with pytest.raises(SettingsError, match="the server on loopback did not start"):
        async with serve_on_loopback(fails, lifespan="on"):
            pass
