import httpx
import pytest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from gateway.web.request import MAX_BODY_BYTES, PublicUrl, read_body, redirect_final_slashes


def request(path="/twilio/incoming", query="", *, raw_path=None, chunks=(), **headers):
    """A request as the server hands it over, on its own address."""
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    scope = {
        "type": "http",
        "method": "POST",
        "scheme": "http",
        "server": ("127.0.0.1", 8000),
        "path": path,
        "raw_path": (raw_path or path).encode(),
        "query_string": query.encode(),
        "headers": named,
    }
    messages = [{"type": "http.request", "body": chunk, "more_body": True} for chunk in chunks]
    messages.append({"type": "http.request", "body": b"", "more_body": False})

    async def receive():
        return messages.pop(0)

    return Request(scope, receive)


# Origin


@pytest.mark.parametrize("configured", ["https://voice.example.com", "https://voice.example.com/"])
def test_configured_address_is_the_origin(configured):
    origin = PublicUrl(configured).origin(request(host="10.0.0.1", x_forwarded_host="evil.example.com"))
    assert origin == "https://voice.example.com"


@pytest.mark.parametrize(
    "headers, origin",
    [
        ({"host": "gateway.local:8000"}, "http://gateway.local:8000"),
        ({"host": "inner", "x_forwarded_host": "voice.example.com"}, "https://voice.example.com"),
        ({"host": "voice.example.com", "x_forwarded_proto": "https"}, "https://voice.example.com"),
        (
            {"host": "inner", "x_forwarded_host": "voice.example.com, proxy", "x_forwarded_proto": "https,http"},
            "https://voice.example.com",
        ),
        ({}, "http://127.0.0.1:8000"),
    ],
)
def test_origin_follows_the_forwarded_headers(headers, origin):
    assert PublicUrl("").origin(request(**headers)) == origin


# The address asked for


def test_requested_url_is_as_it_was_sent():
    asked = request("/a b/ü", "x=%2F&y=1+2", raw_path="/a%20b/%C3%BC", host="h")
    assert PublicUrl("https://voice.example.com").requested_url(asked) == (
        "https://voice.example.com/a%20b/%C3%BC?x=%2F&y=1+2"
    )


def test_path_prefix_is_kept():
    public = PublicUrl("https://example.com/voice/")
    assert public.requested_url(request()) == "https://example.com/voice/twilio/incoming"
    assert public.socket_url(request(), "/twilio/media") == "wss://example.com/voice/twilio/media"


def test_query_inside_the_raw_path_is_not_doubled():
    asked = request("/twilio/incoming", "a=1", raw_path="/twilio/incoming?a=1")
    assert PublicUrl("https://h").requested_url(asked) == "https://h/twilio/incoming?a=1"


# Sockets


@pytest.mark.parametrize(
    "configured, url",
    [
        ("https://voice.example.com", "wss://voice.example.com/twilio/media"),
        ("http://127.0.0.1:8000", "wss://127.0.0.1:8000/twilio/media"),
        ("https://user:password@voice.example.com:8443", "wss://voice.example.com:8443/twilio/media"),
    ],
)
def test_socket_is_always_secure(configured, url):
    assert PublicUrl(configured).socket_url(request(), "/twilio/media") == url


def test_socket_follows_the_forwarded_scheme():
    asked = request(host="voice.example.com", x_forwarded_proto="https")
    assert PublicUrl("").socket_url(asked, "/telnyx/media") == "wss://voice.example.com/telnyx/media"


def test_malformed_host_raises_nothing():
    """What urlsplit refuses, anyone can send."""
    asked, public = request(host="["), PublicUrl("")
    assert (public.scheme(asked), public.origin(asked)) == ("http", "http://[")
    assert public.socket_url(asked, "/twilio/media") == "wss://[/twilio/media"


# Bodies


async def test_body_is_read_whole():
    assert await read_body(request(chunks=[b"From=%2B1", b"", b"&To=2"])) == b"From=%2B1&To=2"
    assert await read_body(request()) == b""


async def test_largest_body_is_taken():
    assert len(await read_body(request(chunks=[b"x" * MAX_BODY_BYTES]))) == MAX_BODY_BYTES


async def test_larger_body_is_refused_as_it_comes():
    asked = request(chunks=[b"x" * MAX_BODY_BYTES, b"x", b"never read"])
    with pytest.raises(HTTPException) as raised:
        await read_body(asked)
    assert (raised.value.status_code, raised.value.detail) == (413, "body too large")


# Redirects


@pytest.fixture
async def slashes():
    """A client of an application with one page, /calls/{id}."""
    app = Starlette(routes=[Route("/calls/{id}", lambda request: PlainTextResponse("page"), methods=["GET"])])
    redirect_final_slashes(app.router)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:8000") as http:
        yield http


FORWARDED = {"X-Forwarded-Host": "other.example.com", "X-Forwarded-Proto": "https", "Forwarded": "host=x;proto=http"}


@pytest.mark.parametrize("headers", [{}, {"Host": "voice.example.com"}, {"Host": "10.0.0.1:8000", **FORWARDED}])
async def test_redirect_keeps_scheme_and_host_of_the_client(slashes, headers):
    response = await slashes.get("/calls/a%20b/?find=%2B1", headers=headers)
    assert (response.status_code, response.headers["Location"]) == (307, "/calls/a%20b?find=%2B1")


async def test_redirect_names_no_other_host(slashes):
    assert (await slashes.get("http://127.0.0.1:8000//calls/1/")).headers["Location"] == "/calls/1"
    assert (await slashes.get("http://127.0.0.1:8000//evil.example.com/")).status_code == 404


async def test_other_unknown_paths_are_not_redirected(slashes):
    paths = ["/", "/calls/", "/calls//", "/other/", "/calls/1/2/"]
    assert {(await slashes.get(path)).status_code for path in paths} == {404}
    assert (await slashes.get("/calls/1")).text == "page"
