"""JSON requests with the admin token, for the endpoints that place calls."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request

from gateway.settings import Secret
from gateway.web.auth import is_authorized
from gateway.web.public_url import read_body


class RequestRejected(Exception):
    """The request can't be served. The message is for the user; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_admin_json(request: Request, admin_token: Secret) -> dict[str, Any]:
    """The JSON object in the body. Raises RequestRejected, also without the admin token."""
    if not is_authorized(request.headers, [admin_token]):
        raise RequestRejected(401, "missing or wrong admin token")
    try:
        given: Any = orjson.loads(await read_body(request) or b"{}")
    except HTTPException as error:
        raise RequestRejected(error.status_code, error.detail) from None
    except orjson.JSONDecodeError:
        raise RequestRejected(400, "the body must be JSON") from None
    if not isinstance(given, dict):
        raise RequestRejected(400, "the body must be an object")
    return given


def text_field(given: Mapping[str, Any], name: str) -> str:
    """An optional string, stripped. Raises RequestRejected for any other type."""
    value = given.get(name) or ""
    if not isinstance(value, str):
        raise RequestRejected(400, f"{name} must be text")
    return value.strip()
