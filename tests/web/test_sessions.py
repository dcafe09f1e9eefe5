"""Ended calls as JSON: who may read them, and what a wrong question gets."""

import pytest

from tests.web.conftest import TOKEN, Visitor

ADMIN = {"Authorization": f"Bearer {TOKEN}"}


@pytest.mark.parametrize("path", ["/v1/sessions", "/v1/sessions/7c67f6e4", "/v1/latency"])
async def test_admin_token_is_needed(stranger: Visitor, path: str):
    answer = await stranger.http.get(path)
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.json() == {"detail": "missing or wrong token"}


async def test_calls_are_listed_newest_first(stranger: Visitor):
    answer = await stranger.http.get("/v1/sessions", params={"limit": "2"}, headers=ADMIN)
    first, second = answer.json()
    assert first["session"] == stranger.session.id and first["started_at"] > second["started_at"]
    assert answer.headers["cache-control"] == "no-store"


async def test_start_of_an_id_is_enough(stranger: Visitor):
    answer = await stranger.http.get(f"/v1/sessions/{stranger.session.uuid[:8]}", headers=ADMIN)
    assert answer.json()["session"] == stranger.session.id


@pytest.mark.parametrize(
    "path, status, detail",
    [
        ("/v1/sessions?limit=0", 422, "limit must be a number from 1 to 1000"),
        (f"/v1/sessions?limit={'9' * 5000}", 422, "limit must be a number from 1 to 1000"),
        ("/v1/sessions?limit=many", 422, "limit must be a number from 1 to 1000"),
        ("/v1/sessions?since=then", 422, "since and before must be times like 2026-02-06T23:15:00+00:00"),
        ("/v1/latency?before=now", 422, "since and before must be times like 2026-02-06T23:15:00+00:00"),
        ("/v1/sessions/ffffffff", 404, "no single call matches this id"),
    ],
)
async def test_wrong_questions_are_explained(stranger: Visitor, path: str, status: int, detail: str):
    answer = await stranger.http.get(path, headers=ADMIN)
    assert (answer.status_code, answer.json()) == (status, {"detail": detail})
