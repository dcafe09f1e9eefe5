"""What those have in common who want a call placed: they show the admin token, and say what they want as JSON."""

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.requests import Request

from gateway.settings import Secret
from gateway.web.auth import is_authorized
from gateway.web.public_url import read_body


class RequestRejected(Exception):
    """No call is placed. Its text is for a person; `status` is what HTTP says of it."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status


async def wanted(request: Request, admin_token: Secret) -> dict[str, Any]:
    """The object in the body. Raises RequestRejected, also for who has no admin token."""
    if not is_authorized(request.headers, [admin_token]):
        raise RequestRejected(401, "missing or wrong admin token")
    try:
        given: Any = orjson.loads(await read_body(request) or b"{}")
    except orjson.JSONDecodeError:
        raise RequestRejected(400, "the body must be JSON") from None
    if not isinstance(given, dict):
        raise RequestRejected(400, "the body must be an object")
    return given


def text_of(given: Mapping[str, Any], name: str) -> str:
    """A text that may be missing. Raises RequestRejected for anything else."""
    value = given.get(name) or ""
    if not isinstance(value, str):
        raise RequestRejected(400, f"{name} must be text")
    return value.strip()
